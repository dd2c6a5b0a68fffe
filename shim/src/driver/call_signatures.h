/* The two C signatures that carry any driver call's arguments unchanged.
 *
 * INT: eleven words, as many as any prototype of integers and pointers has. WIDE: every integer and floating-point
 * argument register and 24 stack words. Passing more words than the callee takes is harmless on x86-64 (System V) and
 * aarch64 (AAPCS64, where each stack argument takes eight bytes on Linux).  */
#pragma once

#include <stdint.h>

typedef uintptr_t W;

#define INT_PARAMETERS W a0, W a1, W a2, W a3, W a4, W a5, W a6, W a7, W a8, W a9, W a10
#define INT_ARGUMENTS a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10

#if defined(__aarch64__)
#define EXTRA_PARAMETERS W x0, W x1,
#define EXTRA_ARGUMENTS x0, x1,
#else
#define EXTRA_PARAMETERS
#define EXTRA_ARGUMENTS
#endif
#define WIDE_PARAMETERS                                                                                             \
	W i0, W i1, W i2, W i3, W i4, W i5, EXTRA_PARAMETERS double d0, double d1, double d2, double d3, double d4, \
		double d5, double d6, double d7, W s0, W s1, W s2, W s3, W s4, W s5, W s6, W s7, W s8, W s9, W s10, \
		W s11, W s12, W s13, W s14, W s15, W s16, W s17, W s18, W s19, W s20, W s21, W s22, W s23
#define WIDE_ARGUMENTS                                                                                              \
	i0, i1, i2, i3, i4, i5, EXTRA_ARGUMENTS d0, d1, d2, d3, d4, d5, d6, d7, s0, s1, s2, s3, s4, s5, s6, s7, s8, \
		s9, s10, s11, s12, s13, s14, s15, s16, s17, s18, s19, s20, s21, s22, s23

typedef W (*int_fn)(INT_PARAMETERS);
typedef W (*wide_fn)(WIDE_PARAMETERS);
