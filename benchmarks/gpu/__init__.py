"""What has to be measured on a GPU: cost and quality at 124 M parameters, a public record."""
