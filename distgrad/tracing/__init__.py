"""Records a user's function as a graph: functions, variables, scopes and users' own ops."""
