# The simulated driver and NVML, included by ../Makefile: run from the folder above, output in $(BUILD).
BUILD ?= build
CFLAGS ?= -O2 -g

# Compiled as position-independent code of C11 with GNU extensions; nothing but libc and libpthread.
SIM_CFLAGS = -std=gnu11 $(CFLAGS) -fPIC -fvisibility=hidden -D_GNU_SOURCE \
	-Wall -Wextra -Wstrict-prototypes -include src/base/glibc_symbol_versions.h -iquote sim -iquote src -iquote $(SIM_GENERATED)
# -Bsymbolic: our own calls stay ours, whatever a preloaded library exports under the same names. nodelete: executors run
# our code. No SONAME: neither the loader nor ldconfig takes these files for the driver unless there is a link of that
# name, and a program linked through such a link asks for the link's name (-l:libcuda.so.1), as it would of the driver.
SIM_LDFLAGS = -shared -Wl,-Bsymbolic -Wl,-z,defs -Wl,-z,now -Wl,-z,relro -Wl,-z,nodelete -Wl,--no-as-needed

# By file name, as the shim's: older glibc needs it named, newer has no such library to find with -l.
SIM_LIBS = -l:libpthread.so.0

SIM_SHARED = machine/machine machine/settings machine/activity
SIM_NVML = nvml/nvml nvml/nvml_processes $(SIM_SHARED)
SIM_CUDA = $(filter-out $(SIM_NVML),$(patsubst sim/%.c,%,$(wildcard sim/*/*.c))) $(SIM_SHARED)
SIM_CUDA_OBJECTS = $(SIM_CUDA:%=$(BUILD)/sim/%.o)
SIM_NVML_OBJECTS = $(SIM_NVML:%=$(BUILD)/sim/%.o)
SIM_LIBRARIES = $(BUILD)/libaffinode-sim-cuda.so $(BUILD)/libaffinode-sim-nvml.so

SIM_GENERATED = $(BUILD)/generated/sim
# Name for cuGetProcAddress, version since which it means the symbol, symbol.
$(SIM_GENERATED)/driver/entries.h: tools/signatures.tsv
	@mkdir -p $(@D)
	awk -F '\t' '!/^#/ && $$1 !~ /_pt(ds|sz)$$/ { name = $$1; sub(/_v[0-9]+$$/, "", name); \
		print "ENTRY(" name ", " $$2 ", " $$1 ")" }' $< >$@.new && mv $@.new $@
$(BUILD)/sim/driver/entry_table.o: $(SIM_GENERATED)/driver/entries.h

.PHONY: sim
sim: $(SIM_LIBRARIES)

$(BUILD)/sim/%.o: sim/%.c sim/sim.mk
	@mkdir -p $(@D)
	$(CC) $(SIM_CFLAGS) -MMD -MP -c $< -o $@

# Tests fill and digest gigabytes.
$(BUILD)/sim/kernel/%.o: SIM_CFLAGS += -O3

$(BUILD)/libaffinode-sim-cuda.so: $(SIM_CUDA_OBJECTS)
	$(CC) $(SIM_LDFLAGS) $(LDFLAGS) -o $@ $^ $(SIM_LIBS)

$(BUILD)/libaffinode-sim-nvml.so: $(SIM_NVML_OBJECTS)
	$(CC) $(SIM_LDFLAGS) $(LDFLAGS) -o $@ $^ $(SIM_LIBS)

-include $(SIM_CUDA_OBJECTS:.o=.d) $(SIM_NVML_OBJECTS:.o=.d)
