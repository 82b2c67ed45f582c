"""Scripts behind decision pages."""
