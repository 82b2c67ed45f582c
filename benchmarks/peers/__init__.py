"""Other published accelerators that forecasts are compared with."""
