/* Binds what glibc 2.34 re-versioned when libpthread moved into libc, so that the simulator loads on every glibc since
 * 2.17, as the shim does. Included by every source file through sim.mk.  */
#ifndef SIM_FLOOR_H
#define SIM_FLOOR_H

#if defined(__x86_64__)
#define SIM_FLOOR(name) __asm__(".symver " #name "," #name "@GLIBC_2.2.5")
#define SIM_FLOOR_AT(name, version) __asm__(".symver " #name "," #name "@" version)
#elif defined(__aarch64__)
#define SIM_FLOOR(name) __asm__(".symver " #name "," #name "@GLIBC_2.17")
#define SIM_FLOOR_AT(name, version) SIM_FLOOR(name)
#else
#error "the simulator is built for Linux on x86-64 and aarch64"
#endif

SIM_FLOOR(pthread_create);
SIM_FLOOR(pthread_detach);
SIM_FLOOR(pthread_key_create);
SIM_FLOOR(pthread_setspecific);
SIM_FLOOR(pthread_getspecific);
SIM_FLOOR(pthread_once);
SIM_FLOOR(pthread_sigmask);
SIM_FLOOR(pthread_mutexattr_init);
SIM_FLOOR(pthread_mutexattr_destroy);
SIM_FLOOR(pthread_mutexattr_setpshared);
SIM_FLOOR_AT(pthread_mutexattr_setrobust, "GLIBC_2.12");
SIM_FLOOR_AT(pthread_mutex_consistent, "GLIBC_2.12");
SIM_FLOOR(pthread_rwlock_rdlock);
SIM_FLOOR(pthread_rwlock_wrlock);
SIM_FLOOR(pthread_rwlock_unlock);
SIM_FLOOR_AT(pthread_condattr_setclock, "GLIBC_2.3.3");

#endif
