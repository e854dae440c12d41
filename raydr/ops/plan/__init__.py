"""The forecast of a run: from data sizes and measured rates, the time, memory, disk and cost of each stage."""
