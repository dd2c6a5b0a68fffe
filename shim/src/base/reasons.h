/* Why something is not done, each in words that a user is shown. A function that can say why returns one of these, NO_REASON if it
 * did what was asked.  */
#pragma once

#define REASONS(X) \
	/* Calls and work of the application's.  */ \
	X(CALL_CAME, "a CUDA call came meanwhile") \
	X(CALL_IN_PROGRESS, "a CUDA call is in progress") \
	X(CALL_WAITS, "a CUDA call waits") \
	X(CALL_DOES_NOT_RETURN, "a CUDA call does not come back") \
	X(GPU_COMPUTES, "the GPU is still computing") \
	X(CAPTURE_OPEN, "a CUDA graph is being captured") \
	X(PROCESS_ENDS, "the process is about to end") \
	X(WANTED_BACK, "the kernel is wanted back") \
	X(WRITTEN_TO, "GPU memory was written to without a CUDA call") \
	/* Contexts.  */ \
	X(CONTEXT_FAILS, "the CUDA context reports an error") \
	X(CONTEXT_UNUSABLE, "a CUDA context cannot be used") \
	X(CONTEXT_ENDS, "a CUDA context is being ended") \
	X(CONTEXT_NOT_READY, "a CUDA context is not ready to be copied from") \
	/* What the driver would not do.  */ \
	X(NOT_READ, "the driver could not read the GPU's memory") \
	X(NOT_COPIED_OUT, "the driver could not copy the GPU's memory out") \
	X(NOT_ALL_COPIED_OUT, "the driver could not copy all of the GPU's memory out") \
	X(NOT_RELEASED, "the driver could not release the GPU's memory") \
	X(NOT_BROUGHT_BACK, "the driver could not bring the memory back; it is kept") \
	X(CAME_BACK_WRONG, "memory came back wrong again and again; it is kept in host memory") \
	X(LOST_ON_DISK, "memory that was on disk came back wrong: it is lost") \
	X(DISK_NOT_READ, "the disk that the memory is on could not be read; it is tried again") \
	/* Room, and other processes.  */ \
	X(GPU_FULL, "the GPU is full") \
	X(NO_ROOM_COMES, "the room that it was to have does not come") \
	X(HOST_MEMORY_SHORT, "host memory is short") \
	X(LOTS_IN_USE, "host memory that the controller lent is in use still") \
	X(NO_HOST_MEMORY_COMES, "the host memory that it was to have does not come") \
	X(ANOTHER_RESUMES, "another kernel is getting its GPU memory back") \
	X(NOT_ALL_PROCESSES, "not all processes of the kernel could be moved") \
	/* The command does not go with what there is.  */ \
	X(CALLED_OFF, "it was called off") \
	X(TOO_LATE, "the command came too late") \
	X(MOVE_UNDER_WAY, "another move is under way") \
	X(NOT_TOGETHER, "processes that move together cannot be moved like this") \
	X(NO_UUID, "that is no GPU's UUID") \
	X(FREED_ALREADY, "the GPU is freed already") \
	X(NOT_FREED, "the GPU is not freed") \
	X(NOTHING_TO_MOVE, "no GPU memory that can be moved") \
	X(UNMOVABLE, "the GPU memory of this process cannot be moved") \
	X(NO_CACHES, "nothing drops caches here") \
	/* Devices that may write past CUDA.  */ \
	X(NETWORK_CARD, "a network card may write to the GPU memory (/dev/infiniband/uverbs is open)") \
	X(GPUDIRECT_STORAGE, "GPUDirect Storage may write to the GPU memory (/dev/nvidia-fs is open)") \
	X(GDRCOPY, "GDRCopy may write to the GPU memory (/dev/gdrdrv is open)") \
	/* Why the CUDA context stays on the GPU.  */ \
	X(DEPTH_NOT_ASKED, "context depth was not asked for (AFFINODE_DEPTH)") \
	X(DRIVER_TOO_OLD, "this driver cannot checkpoint a process (needs CUDA 12.8)") \
	X(NO_GPU_KNOWN, "no GPU is known") \
	X(NO_CONTEXT, "no CUDA context is known") \
	X(SEVERAL_CONTEXTS, "the process uses several CUDA contexts") \
	X(SEVERAL_GPUS, "the process uses several GPUs") \
	X(JUST_BEGUN, "the process has just begun") \
	X(USES_NCCL, "the process uses NCCL") \
	X(UNDER_MPS, "the GPU is shared through MPS") \
	X(USES_MANAGED, "the process uses managed memory") \
	X(SHARES_MEMORY, "it shares GPU memory with other processes or devices") \
	X(NOT_CHECKPOINTABLE, "the driver does not checkpoint what the process uses (managed memory, IPC, …)") \
	X(NOT_LOCKED, "the driver did not let the process be locked") \
	X(NOT_CHECKPOINTED, "the driver could not checkpoint the process") \
	X(NO_LOCK_FILE, "no lock file can be had for the GPU") \
	X(NO_LOCK, "no lock can be had for the GPU") \
	X(DIVIDED, "the GPU is divided (MIG)") \
	X(TOO_SMALL, "the GPU is too small to be sure of the way back: it must have 2 GiB") \
	X(WRAPPERS_USED_UP, "more driver entry points than there are wrappers") \
	/* NVML, and the program that asks it.  */ \
	X(NVML_WRAPPERS_USED_UP, "more entry points of NVML than there are wrappers") \
	X(NVML_WATCHES, "the process watches the GPU through NVML") \
	X(NVML_UNSEEN, "NVML is loaded, and no call of it was seen: its calls may come past the shim") \
	X(NVML_NOT_HERE, "NVML (libnvidia-ml.so.1) is not here") \
	X(NVML_BROKEN, "NVML does not work here") \
	X(NVML_NO_GPU, "NVML does not know this GPU") \
	X(NVML_NO_FIGURES, "NVML does not know this GPU's free memory") \
	X(NVML_SLOW, "NVML does not say in time how much memory is free") \
	X(NVML_NO_MEMORY, "no memory for asking NVML") \
	X(NVML_NO_PROCESS, "no process can be started to ask NVML") \
	X(PROBE_NOT_FOUND, "affinode-gpu-memory is not beside the shim, or not executable") \
	X(PROBE_NOT_RUN, "affinode-gpu-memory cannot be run") \
	X(PROBE_KILLED, "affinode-gpu-memory was killed") \
	X(PROBE_FAILED, "affinode-gpu-memory failed") \
	X(PROBE_MALFORMED, "affinode-gpu-memory said something else") \
	/* Why it cannot come back on another GPU.  */ \
	X(NO_OTHER_GPU, "there was no other GPU to go to when the process began") \
	X(SPREADS, "the process has memory on several GPUs") \
	X(ONLY_WHERE_IT_WAS, "its GPU is not in this machine, and the driver brings it back on no other") \
	X(NO_GPU_LIKE_IT, "this machine has no GPU like the one that it left") \
	X(OTHER_KIND, "the other GPU is of another kind") \
	X(ONE_DIVIDED, "one of the two GPUs is divided (MIG)") \
	X(EXCLUSIVE, "the other GPU is set to be used by one process") \
	X(NVML_NO_OTHER_GPU, "NVML does not know that GPU") \
	X(NVML_NO_OTHER_FIGURES, "NVML does not know that GPU's free memory")

enum reason {
	NO_REASON,
#define X(name, words) REASON_##name,
	REASONS(X)
#undef X
};

/* "" for NO_REASON.  */
const char *reason_words(enum reason reason);
