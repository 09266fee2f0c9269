"""The scheduling ladder: one workload under five policies, each of which mends what the one before costs."""
