"""Pictures of an experiment, drawn by Matplotlib or Plotly."""
