"""Plans on a Ray cluster: one Ray task per task of the plan. The only folder that imports Ray."""
