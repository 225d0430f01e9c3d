"""One of each thing that a package of your own can bring to mqtune; small, and held to mqtune's contract suites."""
