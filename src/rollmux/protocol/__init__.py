"""What enters and leaves a process: messages between jobs and the controller, and the files that people write.

Messages are plain frozen dataclasses, so that a job needs only the standard library for them.
"""
