/* affinode-gpu-memory UUID PID: what NVML says of a GPU's memory, in one line of numbers:
 *
 *     TOTAL FREE USED PROCESSES OF_PID DIVIDED
 *
 * the first three and OF_PID in bytes; how many processes have a context on it (0: not known); what PID has of it (0:
 * not told apart, as in containers); 1 if the GPU is divided (MIG), else 0. On failure a word on standard error and an
 * exit status of context_depth/nvml/nvml_probe_exit.h.
 *
 * affinode-gpu-memory all PID: such a line for each GPU that NVML can name, TOTAL 0 where it has no figures, and after
 * it
 *
 *     SHARED UUID PCI NAME
 *
 * 1 if any number of processes may use the GPU at once (its compute mode is the default), else 0; its place on the PCI
 * bus as sysfs names it; and what kind of GPU it is, with its spaces.
 *
 * A program of its own, because a process that the driver has checkpointed never comes back from a call of NVML.  */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "context_depth/nvml/nvml_probe_exit.h"

#define LIBRARY "libnvidia-ml.so.1"
#define MAX_PROCESSES 1024
#define NOT_KNOWN (~0ull)

/* As nvml.h declares them (NVML 11 and later).  */
typedef struct nvmlDevice_st *nvml_device;
struct nvml_memory {
	unsigned long long total, free, used;
};
struct nvml_pci {
	char legacy_id[16];
	unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
	char id[32];
};
struct nvml_process {
	unsigned int pid;
	unsigned long long used_bytes;
	unsigned int gpu_instance, compute_instance;
};

static struct {
	int (*init)(void);
	int (*by_uuid)(const char *, nvml_device *);
	int (*memory)(nvml_device, struct nvml_memory *);
	int (*processes)(nvml_device, unsigned int *, struct nvml_process *);
	int (*mig_mode)(nvml_device, unsigned int *, unsigned int *);
	int (*compute_mode)(nvml_device, unsigned int *);
	int (*count)(unsigned int *);
	int (*by_index)(unsigned int, nvml_device *);
	int (*uuid)(nvml_device, char *, unsigned int);
	int (*name)(nvml_device, char *, unsigned int);
	int (*pci)(nvml_device, struct nvml_pci *);
} nvml;

struct figures {
	struct nvml_memory bytes;
	unsigned int processes;
	unsigned long long own;
	bool divided;
};

static enum gpu_memory_exit fail(enum gpu_memory_exit status, const char *word)
{
	dprintf(STDERR_FILENO, "affinode-gpu-memory: %s\n", word);
	return status;
}

static bool find_nvml(void)
{
	void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);

	if (!library)
		return false;
	*(void **)&nvml.init = dlsym(library, "nvmlInit_v2");
	*(void **)&nvml.by_uuid = dlsym(library, "nvmlDeviceGetHandleByUUID");
	*(void **)&nvml.memory = dlsym(library, "nvmlDeviceGetMemoryInfo");
	*(void **)&nvml.processes = dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3");
	*(void **)&nvml.mig_mode = dlsym(library, "nvmlDeviceGetMigMode");
	*(void **)&nvml.compute_mode = dlsym(library, "nvmlDeviceGetComputeMode");
	*(void **)&nvml.count = dlsym(library, "nvmlDeviceGetCount_v2");
	*(void **)&nvml.by_index = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
	*(void **)&nvml.uuid = dlsym(library, "nvmlDeviceGetUUID");
	*(void **)&nvml.name = dlsym(library, "nvmlDeviceGetName");
	*(void **)&nvml.pci = dlsym(library, "nvmlDeviceGetPciInfo_v3");
	return true;
}

/* How many use the GPU, and what one of them has.  */
static unsigned int users(nvml_device device, unsigned int pid, unsigned long long *bytes)
{
	static struct nvml_process list[MAX_PROCESSES];
	unsigned int count = MAX_PROCESSES;

	if (!nvml.processes || nvml.processes(device, &count, list) != 0)
		return 0;
	for (unsigned int i = 0; i < count && i < MAX_PROCESSES; i++)
		if (list[i].pid == pid && list[i].used_bytes != NOT_KNOWN)
			*bytes = list[i].used_bytes;
	return count;
}

static bool is_divided(nvml_device device)
{
	unsigned int now = 0, pending = 0;

	return nvml.mig_mode && nvml.mig_mode(device, &now, &pending) == 0 && (now || pending);
}

static bool read_pid(const char *text, unsigned int *pid)
{
	for (*pid = 0; *text >= '0' && *text <= '9'; text++)
		*pid = *pid * 10 + (unsigned int)(*text - '0');
	return *text == '\0' && *pid != 0;
}

static bool is_shared(nvml_device device)
{
	unsigned int mode = 0;

	return !nvml.compute_mode || nvml.compute_mode(device, &mode) != 0 || mode == 0;
}

static bool look(nvml_device device, unsigned int pid, struct figures *figures)
{
	memset(figures, 0, sizeof(*figures));
	/* before the bytes: what comes in between is counted in these */
	figures->processes = users(device, pid, &figures->own);
	figures->divided = is_divided(device);
	return nvml.memory(device, &figures->bytes) == 0;
}

static bool print(const struct figures *figures, const char *rest)
{
	return dprintf(STDOUT_FILENO, "%llu %llu %llu %u %llu %d%s\n", figures->bytes.total, figures->bytes.free,
		       figures->bytes.used, figures->processes, figures->own, figures->divided, rest) > 0;
}

static enum gpu_memory_exit begin(void)
{
	if (!find_nvml())
		return fail(GPU_MEMORY_NO_LIBRARY, LIBRARY " is not here");
	if (!nvml.init || !nvml.by_uuid || !nvml.memory || nvml.init() != 0)
		return fail(GPU_MEMORY_NO_NVML, "NVML does not work here");
	return GPU_MEMORY_SAID;
}

static enum gpu_memory_exit say(const char *uuid, unsigned int pid)
{
	struct figures figures;
	nvml_device device;

	if (nvml.by_uuid(uuid, &device) != 0)
		return fail(GPU_MEMORY_NO_GPU, "NVML does not know this GPU");
	if (!look(device, pid, &figures))
		return fail(GPU_MEMORY_NO_FIGURES, "NVML does not know this GPU's memory");
	return print(&figures, "") ? GPU_MEMORY_SAID : GPU_MEMORY_USAGE;
}

/* One that has fallen off the bus is left out.  */
static enum gpu_memory_exit say_one_of_all(unsigned int index, unsigned int pid)
{
	char uuid[96], name[96], rest[256];
	struct figures figures;
	struct nvml_pci pci;
	nvml_device device;

	if (nvml.by_index(index, &device) != 0 || nvml.uuid(device, uuid, sizeof(uuid)) != 0 ||
	    nvml.name(device, name, sizeof(name)) != 0 || nvml.pci(device, &pci) != 0)
		return GPU_MEMORY_SAID;
	if (!look(device, pid, &figures))
		memset(&figures.bytes, 0, sizeof(figures.bytes));
	name[strcspn(name, "\n")] = '\0';
	snprintf(rest, sizeof(rest), " %d %s %04x:%02x:%02x.0 %s", is_shared(device), uuid, pci.domain, pci.bus, pci.device,
		 name);
	return print(&figures, rest) ? GPU_MEMORY_SAID : GPU_MEMORY_USAGE;
}

static enum gpu_memory_exit say_all(unsigned int pid)
{
	enum gpu_memory_exit said = GPU_MEMORY_SAID;
	unsigned int count = 0;

	if (!nvml.count || !nvml.by_index || !nvml.uuid || !nvml.name || !nvml.pci || nvml.count(&count) != 0)
		return fail(GPU_MEMORY_NO_GPU, "NVML does not list its GPUs");
	for (unsigned int i = 0; i < count && said == GPU_MEMORY_SAID; i++)
		said = say_one_of_all(i, pid);
	return said;
}

int main(int argc, char **argv)
{
	enum gpu_memory_exit begun;
	unsigned int pid;

	if (argc != 3 || !read_pid(argv[2], &pid))
		_exit(fail(GPU_MEMORY_USAGE, "usage: affinode-gpu-memory UUID|all PID"));
	begun = begin();
	if (begun == GPU_MEMORY_SAID)
		begun = strcmp(argv[1], "all") == 0 ? say_all(pid) : say(argv[1], pid);
	_exit(begun); /* NVML's ends take longer than its answers */
}

/* The C library's start was re-versioned in 2.34, and the compiler's own start code asks for the newest: through
 * --wrap it comes here, and goes on to the one that every version has. The shim exports a dlsym, so
 * base/glibc_symbol_versions.h leaves that alone.  */
#if defined(__x86_64__)
#define OLDEST "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define OLDEST "GLIBC_2.17"
#endif
__asm__(".symver start_main, __libc_start_main@" OLDEST);
__asm__(".symver dlsym, dlsym@" OLDEST);
int start_main(int (*)(int, char **), int, char **, void (*)(void), void (*)(void), void (*)(void), void *);
int __wrap___libc_start_main(int (*body)(int, char **), int argc, char **argv, void (*init)(void), void (*fini)(void),
			     void (*loader_fini)(void), void *stack_end);

int __wrap___libc_start_main(int (*body)(int, char **), int argc, char **argv, void (*init)(void), void (*fini)(void),
			     void (*loader_fini)(void), void *stack_end)
{
	return start_main(body, argc, argv, init, fini, loader_fini, stack_end);
}
