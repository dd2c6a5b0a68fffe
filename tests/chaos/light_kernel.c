/* A kernel that is light enough for forty of them on a small machine: it thinks, runs a cell of random GPU work, thinks.
 *
 *   light_kernel BOARD SEED MEBIBYTES THINK_MS WORK_MS BALLAST_MIB
 *
 * It keeps at most MEBIBYTES on the GPU and knows each word of them; and BALLAST_MIB, which it fills and looks at by samples, so
 * that moves of it are long and cells are not. What it does and what it met is on its board, a
 * file of `struct board` that others map (light_kernels.py): a driver's error, out of memory and a wrong word are never
 * corrected, only told. It ends as ipykernel does when its parent is gone.  */
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>

#include "harness.h"

#define BLOCKS 6
#define LEAST_MIB 2
#define CHUNK MiB(2) /* of the ballast: one word over and over */
#define CHUNKS_MOST 1024
#define SAMPLES 16
#define ADDS 4
#define POLL_PARENT_US 100000

enum phase { STARTING, THINKING, IN_CELL, ENDED, BROKEN };

struct board {
	uint32_t pid;
	uint32_t phase;
	uint64_t cells;        /* begun */
	uint64_t cell_since_ns;
	uint64_t cell_sum_ns, cell_longest_ns;
	uint64_t words_checked;
	uint64_t out_of_memory;
	uint64_t bytes;        /* on the GPU or parked, of blocks */
	uint32_t end;          /* written by others: check everything and end */
	uint32_t hurry;        /* written by others: do not think */
	char problem[256];
};

static struct block {
	CUdeviceptr at;
	size_t bytes;
	uint32_t seed, added;
} blocks[BLOCKS];

static struct {
	CUdeviceptr at;
	size_t chunks;
	uint32_t words[CHUNKS_MOST];
} ballast;

static struct board *board;
static uint64_t random_state;
static size_t limit;
static uint64_t think_ns, work_ns;

static uint64_t pick(uint64_t n)
{
	return test_random(&random_state) % n;
}

static void set_phase(enum phase phase)
{
	__atomic_store_n(&board->phase, phase, __ATOMIC_RELEASE);
}

/* The process stays, with all it holds, until a developer has looked.  */
_Noreturn static void break_down(const char *what, long value)
{
	snprintf(board->problem, sizeof(board->problem), "%s: %ld", what, value);
	set_phase(BROKEN);
	for (;;)
		pause();
}

static void must(CUresult result, const char *what)
{
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		board->out_of_memory++;
	if (result != CUDA_SUCCESS)
		break_down(what, (long)result);
}
#define MUST(call) must(call, #call)

static size_t held(void)
{
	size_t sum = 0;

	for (unsigned i = 0; i < BLOCKS; i++)
		sum += blocks[i].bytes;
	return sum;
}

static void tell_bytes(void)
{
	board->bytes = held() + (ballast.at ? ballast.chunks * CHUNK : 0);
}

static void change_chunk(size_t i)
{
	ballast.words[i] = (uint32_t)test_random(&random_state);
	MUST(cu.MemsetD32Async(ballast.at + i * CHUNK, ballast.words[i], CHUNK / 4, NULL));
}

/* All of it, or a few chunks.  */
static void change_ballast(void)
{
	if (pick(2))
		for (size_t i = 0; i < ballast.chunks; i++)
			change_chunk(i);
	else
		for (unsigned i = 0; i < SAMPLES; i++)
			change_chunk(pick(ballast.chunks));
}

static void take_ballast(void)
{
	MUST(cu.MemAlloc(&ballast.at, ballast.chunks * CHUNK));
	for (size_t i = 0; i < ballast.chunks; i++)
		change_chunk(i);
	tell_bytes();
}

static void check_chunk(size_t i, size_t first, size_t words)
{
	static uint32_t seen[CHUNK / 4];

	MUST(cu.MemcpyDtoH(seen, ballast.at + i * CHUNK + first * 4, words * 4));
	for (size_t j = 0; j < words; j++)
		if (seen[j] != ballast.words[i])
			break_down("a wrong word of the ballast, in chunk", (long)i);
	board->words_checked += words;
}

static void check_samples(void)
{
	for (unsigned i = 0; i < SAMPLES && ballast.at; i++)
		check_chunk(pick(ballast.chunks), pick(CHUNK / 4), 1);
}

static void check_ballast(void)
{
	for (size_t i = 0; i < ballast.chunks && ballast.at; i++)
		check_chunk(i, 0, CHUNK / 4);
}

static void check(struct block *block)
{
	uint32_t *words;

	if (!block->at)
		return;
	words = malloc(block->bytes);
	if (!words)
		break_down("malloc", (long)block->bytes);
	MUST(cu.MemcpyDtoH(words, block->at, block->bytes));
	for (size_t i = 0; i < block->bytes / 4; i++)
		if (words[i] != pattern_word(block->seed, i) + block->added)
			break_down("a wrong word, of index", (long)i);
	board->words_checked += block->bytes / 4;
	free(words);
}

static void check_all(void)
{
	for (unsigned i = 0; i < BLOCKS; i++)
		check(&blocks[i]);
}

static void give_up(struct block *block)
{
	if (block->at)
		MUST(cu.MemFree(block->at));
	*block = (struct block){0};
	tell_bytes();
}

static void allocate(struct block *block)
{
	size_t room, mib;

	give_up(block);
	room = (limit - held()) >> 20;
	if (room < LEAST_MIB)
		return;
	mib = LEAST_MIB + pick(room / 2 + 1);
	if (mib > room)
		mib = room;
	MUST(cu.MemAlloc(&block->at, MiB(mib)));
	*block = (struct block){block->at, MiB(mib), (uint32_t)test_random(&random_state), 0};
	tell_bytes();
	MUST(launch_pattern(NULL, block->at, block->bytes, block->seed));
}

static void add(struct block *block)
{
	for (uint64_t n = pick(ADDS) + 1; block->at && n; n--) {
		uint32_t addend = (uint32_t)pick(1000);

		MUST(launch_add(NULL, block->at, block->bytes, addend));
		block->added += addend;
	}
}

/* Once it has half of what it may have, it mostly works with that, and comes back for it when it was parked.  */
static void act(void)
{
	struct block *block = &blocks[pick(BLOCKS)];

	switch (pick(held() < limit / 2 ? 8 : 32)) {
	case 0:
	case 1:
		return allocate(block);
	case 2:
		return give_up(block);
	case 3:
		return check(block);
	case 4:
		MUST(launch_spin(NULL, pick(work_ns) + 1));
		return;
	default:
		return add(block);
	}
}

static void cell(void)
{
	uint64_t began = test_now_ns(), lasted;

	board->cell_since_ns = began;
	board->cells++;
	set_phase(IN_CELL);
	if (ballast.chunks && !ballast.at)
		take_ballast();
	else if (ballast.chunks && pick(2))
		change_ballast();
	for (uint64_t n = pick(6) + 1; n; n--)
		act();
	if (pick(5) == 0)
		check_all();
	check_samples();
	MUST(cu.CtxSynchronize());
	lasted = test_now_ns() - began;
	board->cell_sum_ns += lasted;
	if (lasted > board->cell_longest_ns)
		board->cell_longest_ns = lasted;
	set_phase(THINKING);
}

static bool is_told(const uint32_t *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE) != 0;
}

/* Between nothing and four times the mean, mostly short, as people do.  */
static void think(void)
{
	uint64_t until = test_now_ns() + think_ns * pick(1000) / 500 * pick(1000) / 500;

	while (test_now_ns() < until && !is_told(&board->hurry) && !is_told(&board->end))
		usleep(2000);
}

/* It tells its number: a kernel has another parent from the beginning if its server was killed at once.  */
static void *follow_server(void *unused)
{
	const char *server = getenv("LIGHT_SERVER");

	(void)unused;
	CHECK(server != NULL);
	while (kill(atoi(server), 0) == 0) /* not its parent any more, once it was woken from an image */
		usleep(POLL_PARENT_US);
	_exit(0);
}

/* Where it crashed, for the log: no debugger is attached.  */
static void tell_crash(int number)
{
	void *frames[64];

	fprintf(stderr, "process %d crashed by signal %d\n", (int)getpid(), number);
	backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
	signal(number, SIG_DFL);
	raise(number);
}

static void map_board(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	CHECK(fd >= 0);
	board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(board != MAP_FAILED);
	close(fd);
	board->pid = (uint32_t)getpid();
}

int main(int argc, char **argv)
{
	pthread_t follower;

	CHECK_EQUAL(argc, 7);
	signal(SIGSEGV, tell_crash);
	signal(SIGBUS, tell_crash);
	signal(SIGABRT, tell_crash);
	map_board(argv[1]);
	random_state = test_seed = strtoull(argv[2], NULL, 10);
	limit = MiB(strtoull(argv[3], NULL, 10));
	think_ns = strtoull(argv[4], NULL, 10) * 1000000u;
	work_ns = strtoull(argv[5], NULL, 10) * 1000000u;
	ballast.chunks = MiB(strtoull(argv[6], NULL, 10)) / CHUNK;
	CHECK(limit >= MiB(LEAST_MIB) && work_ns > 0 && ballast.chunks <= CHUNKS_MOST);
	thread_start(&follower, follow_server, NULL);
	cuda_start();
	while (!is_told(&board->end)) {
		cell();
		think();
	}
	check_all();
	check_ballast();
	for (unsigned i = 0; i < BLOCKS; i++)
		give_up(&blocks[i]);
	if (ballast.at)
		MUST(cu.MemFree(ballast.at));
	set_phase(ENDED);
	return 0;
}
