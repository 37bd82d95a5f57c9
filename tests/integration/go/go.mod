module ledgercheck

go 1.23

require golang.org/x/mod v0.0.0

// Copied by the test out of the toolchain's own sources, so that nothing comes over a network.
replace golang.org/x/mod => ./mod
