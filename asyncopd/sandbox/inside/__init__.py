"""What runs on the far side of the wall: builds it where it must, starts one program and watches over it.

It is imported there by itself, without `asyncopd` or site packages, so its modules use the standard library and each
other only, by relative imports.
"""
