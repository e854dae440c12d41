"""The declarations of all nodes: one function a kind, the only statement of what an artefact is made from."""
