"""What a run will take: sizes of its data, rates of its model, and from both time, memory, disk and money a stage."""
