"""What crosses a border: messages between jobs and the controller, and the files that people write.

Values are plain frozen dataclasses, so that a job needs no more than the standard library to speak.
"""
