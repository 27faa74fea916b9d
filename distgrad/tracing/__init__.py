"""Records Python functions as graphs: functions, variables, scopes and user-defined ops."""
