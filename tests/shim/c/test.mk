# The shim's C tests, included by shim/Makefile: one program a behaviour, each in three flavours.
#   make test                                 all of them; with --jobs=3 they wait beside each other
#   make test-quick                           those that the repository's `make test` runs
#   make test-run PROGRAM=cancel FLAVOUR=thread   one; flavours: plain, address, thread
#   make test TEST_STRIDE=1 TEST_ROUNDS=10        at length: every step of a move, ten times as many rounds
#   make fuzz FUZZ_S=60                           the message parser, by clang's fuzzer
#
# plain: the shim is preloaded, as in a kernel. address (with undefined) and thread: its sources are compiled into the
# program with the sanitizer, without the driver's exported names and dlsym, which sanitizers themselves would call too early.

TEST_FOLDER := ../tests/shim/c
TEST_BUILD := $(BUILD)/test
# Folders as in ../src, and what the programs have in common. A program is known by its name alone, and so is a header.
TEST_SOURCES := $(wildcard $(TEST_FOLDER)/*/*.c $(TEST_FOLDER)/*/*/*.c $(TEST_FOLDER)/*/*.cc)
TEST_COMMON := $(TEST_FOLDER)/support
TEST_FUZZ := $(TEST_FOLDER)/link/fuzz_messages.c
TEST_LIBRARIES := calling_driver decompressing_driver
TEST_WATCHER := linked_to_nvml
TEST_SUPPORT := $(filter-out $(TEST_LIBRARIES) $(TEST_WATCHER),$(basename $(notdir $(filter $(TEST_COMMON)/%,$(TEST_SOURCES)))))
TEST_PROGRAMS := $(sort $(basename $(notdir $(filter-out $(TEST_COMMON)/% $(TEST_FUZZ),$(TEST_SOURCES)))))
vpath %.c $(sort $(dir $(TEST_SOURCES)))
vpath %.cc $(sort $(dir $(TEST_SOURCES)))
TEST_FLAVOURS := plain address thread
# What the repository's `make test` runs: the programs that take longest are left out, and sanitizers with the compilation that they need.
# `make test-all` and `make test` here run every one. What of each is still looked at:
#   handed_over      step_handed_over: the driver fails at any call of such a move
#   staging          step_errors: copies by the ring, at any fault
#   step_callers     free_while_copying, preempted, unmap_while_waiting, gate_stress: calls in the midst of a move
#   step_disk        spill, step_spill: the disk and the process end at any step
#   step_packs       packs: images that share what they have in common
#   step_memory_packs  memory_packs: parked processes that do
TEST_LONG := handed_over staging step_callers step_disk step_memory_packs step_packs
TEST_QUICK := $(patsubst %,plain/%,$(filter-out $(TEST_LONG),$(TEST_PROGRAMS)))
TEST_CASES := $(foreach flavour,$(TEST_FLAVOURS),$(TEST_PROGRAMS:%=$(flavour)/%))

SANITIZE_address := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
SANITIZE_thread := -fsanitize=thread
# Compiled in two thirds of the time, and as fast in these tests.
SANITIZED_SHIM_address := -O0
TEST_CFLAGS := -std=gnu11 -O1 -g1 -fexceptions -fno-strict-aliasing -iquote src -iquote $(GENERATED) \
	$(patsubst %/,-iquote %,$(sort $(dir $(filter $(TEST_COMMON)/%,$(TEST_SOURCES))))) -DAFFINODE_CONTEXT_DEPTH=$(CONTEXT_DEPTH) -Wall -Wextra -MMD -MP
TEST_CXXFLAGS := $(filter-out -std=gnu11,$(TEST_CFLAGS)) -std=gnu++17

# Loaded by name, as a program on a machine with a driver would.
TEST_LIB := $(TEST_BUILD)/lib
$(TEST_LIB)/libcuda.so.1: $(BUILD)/libaffinode-sim-cuda.so
	@mkdir -p $(@D)
	ln -sf $(abspath $<) $@

# No link: the list of mappings is to name it so, as it names the driver's.
$(TEST_LIB)/libnvidia-ml.so.1: $(BUILD)/libaffinode-sim-nvml.so $(TEST_FOLDER)/test.mk
	@mkdir -p $(@D)
	cp --remove-destination $< $@

# Beside whatever has the shim in it, and for the tests to ask.
$(TEST_BUILD)/%/affinode-gpu-memory: $(BUILD)/affinode-gpu-memory
	@mkdir -p $(@D)
	ln -sf $(abspath $<) $@

$(TEST_LIB)/lib%.so: $(TEST_COMMON)/driver/%_driver.c
	@mkdir -p $(@D)
	$(CC) -O1 -g -fPIC -fexceptions -shared -D_GNU_SOURCE -Wall -Wextra -o $@ $< -ldl

$(TEST_LIB)/lib$(TEST_WATCHER).so: $(TEST_COMMON)/driver/$(TEST_WATCHER).c $(TEST_LIB)/libnvidia-ml.so.1
	$(CC) -O1 -g -fPIC -shared -Wall -Wextra -o $@ $< -L$(TEST_LIB) -Wl,--no-as-needed -l:libnvidia-ml.so.1

$(TEST_BUILD)/plain/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) -D_GNU_SOURCE -c -o $@ $<
$(TEST_BUILD)/plain/%.o: %.cc
	@mkdir -p $(@D)
	$(CXX) $(TEST_CXXFLAGS) -c -o $@ $<
$(TEST_BUILD)/plain/%: $(TEST_BUILD)/plain/%.o $(TEST_SUPPORT:%=$(TEST_BUILD)/plain/%.o)
	$(CXX) -o $@ $^ -pthread -ldl

# Sanitizers have cleanups of their own in every function, which need the compiler's own unwinding.
TEST_SHIM := $(filter-out lookup/linked_symbols gate/unwind,$(patsubst src/%.c,%,$(filter %.c,$(SHIM_SOURCES))))

define SANITIZED
$(TEST_BUILD)/$(1)/shim/%.o: src/%.c | $(MADE_HEADERS)
	@mkdir -p $$(@D)
	$$(CC) $$(TEST_CFLAGS) -DSMALL_POOLS $$(SANITIZE_$(1)) $$(SANITIZED_SHIM_$(1)) -c -o $$@ $$<
$(TEST_BUILD)/$(1)/%.o: %.c
	@mkdir -p $$(@D)
	$$(CC) $$(TEST_CFLAGS) -D_GNU_SOURCE -DSHIM_LINKED $$(SANITIZE_$(1)) -c -o $$@ $$<
$(TEST_BUILD)/$(1)/%.o: %.cc
	@mkdir -p $$(@D)
	$$(CXX) $$(TEST_CXXFLAGS) -DSHIM_LINKED $$(SANITIZE_$(1)) -c -o $$@ $$<
$(TEST_BUILD)/$(1)/libshim.a: $(TEST_SHIM:%=$(TEST_BUILD)/$(1)/shim/%.o)
	rm -f $$@
	$$(AR) qcs $$@ $$^
$(TEST_BUILD)/$(1)/%: $(TEST_BUILD)/$(1)/%.o $(TEST_SUPPORT:%=$(TEST_BUILD)/$(1)/%.o) $(TEST_BUILD)/$(1)/libshim.a
	$$(CXX) $$(SANITIZE_$(1)) -Wl,--export-dynamic-symbol='nvml*' -o $$@ $$^ -pthread -ldl
endef
$(eval $(call SANITIZED,address))
$(eval $(call SANITIZED,thread))

TEST_RUN := LD_LIBRARY_PATH=$(abspath $(TEST_LIB))
RUN_plain := $(TEST_RUN) LD_PRELOAD=$(abspath $(SHIM))
# Leaks are not looked for: the driver, its threads and what the shim keeps for the process's life are never given back.
RUN_address := $(TEST_RUN) ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0 UBSAN_OPTIONS=print_stacktrace=1
# The driver is not instrumented, the real one never could be. Fixed addresses: its shadow does not fit every layout.
RUN_thread := $(TEST_RUN) TSAN_OPTIONS=halt_on_error=1:atexit_sleep_ms=0:ignore_noninstrumented_modules=1:suppressions=$(abspath $(TEST_FOLDER))/tsan.supp \
	setarch -R

# The programs that are built, FLAVOUR/PROGRAM.
TEST_SELECTED ?= $(TEST_CASES)
TEST_FILES := $(TEST_LIB)/libcuda.so.1 $(TEST_LIB)/libnvidia-ml.so.1 $(TEST_LIBRARIES:%_driver=$(TEST_LIB)/lib%.so) \
	$(TEST_LIB)/lib$(TEST_WATCHER).so $(if $(GPU_MEMORY),$(TEST_FLAVOURS:%=$(TEST_BUILD)/%/affinode-gpu-memory))

CLANG ?= clang
FUZZ_S ?= 5
$(TEST_BUILD)/fuzz_messages: $(TEST_FUZZ) src/link/messages.c src/link/grant.c src/base/environment.c src/base/discovery.c src/base/log.c
	@mkdir -p $(@D)
	$(CLANG) -std=gnu11 -O1 -g -fsanitize=fuzzer,address,undefined -iquote src -o $@ $^
fuzz: $(TEST_BUILD)/fuzz_messages
	@mkdir -p $(TEST_BUILD)/corpus
	$< -max_total_time=$(FUZZ_S) -max_len=512 -artifact_prefix=$(TEST_BUILD)/ $(TEST_BUILD)/corpus

.PHONY: test test-quick test-list test-programs test-quick-programs test-run fuzz
test-list:
	@echo $(TEST_CASES)

.SECONDARY:
test-programs: $(SHIM) $(TEST_FILES) $(TEST_SELECTED:%=$(TEST_BUILD)/%)
test-quick-programs: $(SHIM) $(TEST_FILES) $(TEST_QUICK:%=$(TEST_BUILD)/%)

test-run: $(SHIM) $(TEST_FILES) $(TEST_BUILD)/$(FLAVOUR)/$(PROGRAM)
	@$(RUN_$(FLAVOUR)) $(abspath $(TEST_BUILD))/$(FLAVOUR)/$(PROGRAM)

# What a program says is shown if it fails. It ends by itself when its deadline has passed; a timeout is for what hangs.
TEST_RUNS := $(TEST_CASES:%=run/%)
$(TEST_RUNS): run/%: $(SHIM) $(TEST_FILES) $(TEST_BUILD)/%
	@$(RUN_$(*D)) timeout --kill-after=10 $(if $(TEST_STRIDE)$(TEST_ROUNDS),2000,200) $(abspath $(TEST_BUILD))/$* >$(TEST_BUILD)/$*.log 2>&1 || \
		{ cat $(TEST_BUILD)/$*.log; echo "$* failed"; exit 1; }

test: $(TEST_RUNS)
test-quick: $(TEST_QUICK:%=run/%)

# Of a source that has moved, make would look for the old path or take the old object for the new source's (vpath finds what
# a list of dependencies names). Headers may move: -MP.
TEST_BUILT_FROM := $(or $(shell cat $(TEST_BUILD)/sources 2>/dev/null),nothing)
ifneq ($(filter-out $(TEST_SOURCES),$(TEST_BUILT_FROM)),)
$(shell rm -f $(TEST_FLAVOURS:%=$(TEST_BUILD)/%/*.[od]))
endif
ifneq ($(TEST_SOURCES),$(TEST_BUILT_FROM))
$(shell mkdir -p $(TEST_BUILD) && echo $(TEST_SOURCES) >$(TEST_BUILD)/sources)
endif
-include $(wildcard $(TEST_BUILD)/*/*.d $(TEST_BUILD)/*/shim/*/*.d $(TEST_BUILD)/*/shim/*/*/*.d)
