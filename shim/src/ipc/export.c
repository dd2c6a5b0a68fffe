#include "ipc/export.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/growable.h"
#include "base/own_thread.h"
#include "base/per_process.h"
#include "ipc/socket.h"

#define HANDLE_MAGIC 0x43504945444e4641ull /* "AFNDEIPC" */

struct export {
	CUdeviceptr block;
	size_t size, mapped;
	int *fds;
	unsigned count;
	struct ipc_handle handle;
};

/* Guards the exports. It is held while an answer is sent, too, so that a descriptor is not closed meanwhile.  */
static OF_PROCESS pthread_mutex_t exports_lock = PTHREAD_MUTEX_INITIALIZER;
static OF_PROCESS struct export *exports;
static OF_PROCESS size_t exports_count, exports_size;
static uint8_t process_id[16];
static _Atomic int server_fd = -1;

bool ipc_handle_is_ours(const CUipcMemHandle *handle)
{
	struct ipc_handle ours;

	memcpy(&ours, handle, sizeof(ours));
	return ours.magic == HANDLE_MAGIC;
}

static int random_bytes(void *bytes, size_t size)
{
	int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, bytes, size) : -1;

	if (fd >= 0)
		close(fd);
	return n == (ssize_t)size ? 0 : -EIO;
}

static void answer(int fd, const struct ipc_request *request, const struct ipc_sender *sender)
{
	struct ipc_reply reply = {.magic = request->magic, .error = -ENOENT};
	const struct export *found = NULL;

	if (request->magic != HANDLE_MAGIC)
		return;
	memcpy(reply.token, request->token, sizeof(reply.token));
	pthread_mutex_lock(&exports_lock);
	for (size_t i = 0; i < exports_count && !found; i++)
		if (request->version == IPC_HANDLE_VERSION &&
		    memcmp(exports[i].handle.token, request->token, sizeof(request->token)) == 0) {
			reply.error = 0;
			reply.size = exports[i].size;
			reply.mapped = exports[i].mapped;
			found = &exports[i];
		}
	ipc_socket_answer(fd, sender, &reply, found ? found->fds : NULL, found ? found->count : 0);
	pthread_mutex_unlock(&exports_lock);
}

/* Answer requests, on a thread that does nothing else: other processes may send descriptors here, and closing those may block.  */
static void *serve(void *unused)
{
	int fd = atomic_load(&server_fd);

	(void)unused;
	for (;;) {
		struct pollfd pollfd = {.fd = fd, .events = POLLIN};
		struct ipc_request request;
		struct ipc_sender sender;

		if (ipc_socket_take(fd, &request, &sender) == 0)
			answer(fd, &request, &sender);
		else
			poll(&pollfd, 1, -1);
	}
	return NULL;
}

/* Open the socket at the first export. Called with the lock held.  */
static int start_server(void)
{
	int fd, error;

	if (atomic_load(&server_fd) >= 0)
		return 0;
	error = random_bytes(process_id, sizeof(process_id));
	if (error)
		return error;
	fd = ipc_socket_listen(process_id);
	if (fd < 0)
		return fd;
	atomic_store(&server_fd, fd);
	error = thread_begin(serve, NULL);
	if (error) {
		atomic_store(&server_fd, -1);
		close(fd);
	}
	return error;
}

static struct export *find_block(CUdeviceptr block)
{
	for (size_t i = 0; i < exports_count; i++)
		if (exports[i].block == block)
			return &exports[i];
	return NULL;
}

bool exports_find(CUdeviceptr block, struct ipc_handle *handle)
{
	const struct export *export;

	pthread_mutex_lock(&exports_lock);
	export = find_block(block);
	if (export)
		*handle = export->handle;
	pthread_mutex_unlock(&exports_lock);
	return export != NULL;
}

static void close_all(const int *fds, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		close(fds[i]);
}

/* With the lock held.  */
static int add(const struct block *block, const int *fds, unsigned count, struct ipc_handle *handle)
{
	struct export *export = find_block(block->address);
	int error, *kept;

	if (export) {
		close_all(fds, count);
		*handle = export->handle;
		return 0;
	}
	error = start_server();
	if (error)
		return error;
	memset(handle, 0, sizeof(*handle));
	handle->magic = HANDLE_MAGIC;
	handle->version = IPC_HANDLE_VERSION;
	memcpy(handle->process, process_id, sizeof(handle->process));
	error = random_bytes(handle->token, sizeof(handle->token));
	if (error == 0 && !array_has_room(exports, exports_count, exports_size))
		error = -ENOMEM;
	kept = error == 0 ? malloc(count * sizeof(*kept)) : NULL;
	if (!kept)
		return error ? error : -ENOMEM;
	memcpy(kept, fds, count * sizeof(*kept));
	exports[exports_count++] = (struct export){.block = block->address, .size = block->size,
						   .mapped = block->mapped, .fds = kept, .count = count,
						   .handle = *handle};
	return 0;
}

int exports_add(const struct block *block, const int *fds, unsigned count, struct ipc_handle *handle)
{
	int error;

	pthread_mutex_lock(&exports_lock);
	error = add(block, fds, count, handle);
	pthread_mutex_unlock(&exports_lock);
	return error;
}

void ipc_block_ends(CUdeviceptr address)
{
	struct export *export;

	pthread_mutex_lock(&exports_lock);
	export = find_block(address);
	if (export) {
		close_all(export->fds, export->count);
		free(export->fds);
		*export = exports[--exports_count];
	}
	pthread_mutex_unlock(&exports_lock);
}

bool exports_made(const struct ipc_handle *handle)
{
	return atomic_load(&server_fd) >= 0 && memcmp(handle->process, process_id, sizeof(process_id)) == 0;
}

/* Close the child's copies of the descriptors, which would keep the parent's memory on the GPU for as long as the child lives.  */
void exports_close_in_child(void)
{
	int fd = atomic_exchange(&server_fd, -1);

	if (fd >= 0)
		close(fd);
	for (size_t i = 0; i < exports_count; i++)
		close_all(exports[i].fds, exports[i].count);
}
