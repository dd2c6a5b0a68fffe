/* Binds the symbols that newer glibc re-versioned to the versions every glibc since 2.17 has, so that one build runs
 * everywhere (checked by tests/packaging/test_symbol_floor.py). Included by every source file through the Makefile.  */
#ifndef AFFINODE_GLIBC_FLOOR_H
#define AFFINODE_GLIBC_FLOOR_H

#if defined(__linux__) && defined(__x86_64__)
#define AFFINODE_FLOOR(name) __asm__(".symver " #name "," #name "@GLIBC_2.2.5")
#define AFFINODE_FLOOR_2_3_3(name) __asm__(".symver " #name "," #name "@GLIBC_2.3.3")
#elif defined(__linux__) && defined(__aarch64__)
#define AFFINODE_FLOOR(name) __asm__(".symver " #name "," #name "@GLIBC_2.17")
#define AFFINODE_FLOOR_2_3_3 AFFINODE_FLOOR
#else
#error "the shim is built for Linux on x86-64 and aarch64"
#endif

#ifndef __ASSEMBLER__
AFFINODE_FLOOR(dladdr);
AFFINODE_FLOOR(dlopen);
AFFINODE_FLOOR(dlvsym);
AFFINODE_FLOOR_2_3_3(pthread_condattr_setclock);
AFFINODE_FLOOR(pthread_create);
AFFINODE_FLOOR(pthread_detach);
AFFINODE_FLOOR(pthread_join);
AFFINODE_FLOOR(pthread_key_create);
AFFINODE_FLOOR(pthread_mutex_trylock);
AFFINODE_FLOOR(pthread_once);
AFFINODE_FLOOR(pthread_setspecific);
AFFINODE_FLOOR(pthread_sigmask);
#endif

#endif
