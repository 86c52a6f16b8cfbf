# The commands of course.py under their own names. Arguments go in ARGS: make test ARGS="-k engine"
PYTHON ?= python3

.PHONY: setup demo test lab
setup demo test lab:
	@$(PYTHON) course.py $@ $(ARGS)
