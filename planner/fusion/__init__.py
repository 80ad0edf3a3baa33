"""Operations that become one kernel, whatever machine it is for."""
