/* Binds the symbols that newer glibc re-versioned to the versions every glibc since 2.17 has, so that one build of the shim and one of
 * the simulated driver run everywhere (checked by tests/packaging/test_symbol_floor.py). Included by every source file through the
 * Makefile.  */
#pragma once

#if defined(__linux__) && defined(__x86_64__)
#define AFFINODE_FLOOR_AT(name, version) __asm__(".symver " #name "," #name "@GLIBC_" version)
#elif defined(__linux__) && defined(__aarch64__)
#define AFFINODE_FLOOR_AT(name, version) __asm__(".symver " #name "," #name "@GLIBC_2.17")
#else
#error "the shim is built for Linux on x86-64 and aarch64"
#endif
#define AFFINODE_FLOOR(name) AFFINODE_FLOOR_AT(name, "2.2.5")

#ifndef __ASSEMBLER__
AFFINODE_FLOOR(dladdr);
AFFINODE_FLOOR(dlopen);
AFFINODE_FLOOR(dlvsym);
AFFINODE_FLOOR_AT(pthread_condattr_setclock, "2.3.3");
AFFINODE_FLOOR(pthread_create);
AFFINODE_FLOOR(pthread_detach);
AFFINODE_FLOOR(pthread_getspecific);
AFFINODE_FLOOR(pthread_join);
AFFINODE_FLOOR(pthread_key_create);
AFFINODE_FLOOR_AT(pthread_mutex_consistent, "2.12");
AFFINODE_FLOOR(pthread_mutex_trylock);
AFFINODE_FLOOR(pthread_mutexattr_destroy);
AFFINODE_FLOOR(pthread_mutexattr_init);
AFFINODE_FLOOR(pthread_mutexattr_setpshared);
AFFINODE_FLOOR_AT(pthread_mutexattr_setrobust, "2.12");
AFFINODE_FLOOR(pthread_once);
AFFINODE_FLOOR(pthread_rwlock_rdlock);
AFFINODE_FLOOR(pthread_rwlock_unlock);
AFFINODE_FLOOR(pthread_rwlock_wrlock);
AFFINODE_FLOOR(pthread_setspecific);
AFFINODE_FLOOR(pthread_sigmask);
#endif
