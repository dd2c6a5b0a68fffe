/* The exported dlsym: foreign names are tail-called, so that the next dlsym sees the true caller (RTLD_NEXT, and the
 * caller's namespace, depend on the return address).
 *
 * affinode_answer_dlsym(handle, name, return address) returns 0: not ours, 1: answer NULL, else the answer.  */
	.text
	.globl	dlsym
	.type	dlsym, %function
#if defined(__x86_64__)
	.p2align 4
dlsym:
	.cfi_startproc
	endbr64
	movq	(%rsp), %rdx
	pushq	%rdi
	.cfi_adjust_cfa_offset 8
	pushq	%rsi
	.cfi_adjust_cfa_offset 8
	subq	$8, %rsp
	.cfi_adjust_cfa_offset 8
	call	affinode_answer_dlsym
	addq	$8, %rsp
	.cfi_adjust_cfa_offset -8
	popq	%rsi
	.cfi_adjust_cfa_offset -8
	popq	%rdi
	.cfi_adjust_cfa_offset -8
	cmpq	$1, %rax
	je	1f
	ja	2f
	movq	affinode_next_dlsym(%rip), %rax
	jmp	*%rax
1:	xorl	%eax, %eax
2:	ret
	.cfi_endproc
#elif defined(__aarch64__)
	.p2align 2
dlsym:
	.cfi_startproc
	hint	#34			/* bti c */
	stp	x29, x30, [sp, #-32]!
	.cfi_adjust_cfa_offset 32
	.cfi_offset 29, -32
	.cfi_offset 30, -24
	stp	x0, x1, [sp, #16]
	mov	x2, x30
	bl	affinode_answer_dlsym
	mov	x9, x0
	ldp	x0, x1, [sp, #16]
	ldp	x29, x30, [sp], #32
	.cfi_adjust_cfa_offset -32
	.cfi_restore 29
	.cfi_restore 30
	cmp	x9, #1
	b.eq	1f
	b.hi	2f
	adrp	x9, affinode_next_dlsym
	ldr	x9, [x9, #:lo12:affinode_next_dlsym]
	br	x9
1:	mov	x9, xzr
2:	mov	x0, x9
	ret
	.cfi_endproc
#endif
	.size	dlsym, . - dlsym
	.section .note.GNU-stack, "", %progbits
