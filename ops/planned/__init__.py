"""Operations that only passes put into graphs; nobody types them."""
