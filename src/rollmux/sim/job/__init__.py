"""The job simulator: one job's steps request by request, around the same `packer` objects that run in life."""
