/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * ctrmgr-seccomp: compiles a policy (stdin) into the raw BPF program of every
 * architecture that the host's programs may use (stdout). seccomp/README.md has the format. */
#include <ctype.h>
#include <errno.h>
#include <seccomp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORDS_MAX 16

static int line_number;

__attribute__((format(printf, 1, 2))) static _Noreturn void fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fprintf(stderr, "error: policy line %d: ", line_number);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
	exit(2);
}

static void check(int error, const char *what)
{
	if (error < 0)
		fail("%s: %s", what, strerror(-error));
}

static const struct {
	const char *name;
	int number;
} ERRORS[] = {
	{"EPERM", EPERM},
	{"ENOSYS", ENOSYS},
	{"EACCES", EACCES},
	{"EINVAL", EINVAL},
	{"ENOENT", ENOENT},
	{"ENOTSUP", EOPNOTSUPP},
	{"EAFNOSUPPORT", EAFNOSUPPORT},
};

static int error_number(const char *name)
{
	for (size_t i = 0; i < sizeof(ERRORS) / sizeof(*ERRORS); i++)
		if (!strcmp(ERRORS[i].name, name))
			return ERRORS[i].number;
	if (isdigit((unsigned char)name[0]) && atoi(name) > 0 && atoi(name) < 4096)
		return atoi(name);
	fail("`%s` is not an error that a policy may give", name);
}

static uint64_t value(const char *text)
{
	char *end;
	uint64_t n;

	errno = 0;
	n = strtoull(text, &end, 0);
	if (errno || *end || !isdigit((unsigned char)text[0]))
		fail("`%s` is not a number", text);
	return n;
}

/* aN==V, aN!=V, aN<V, aN<=V, aN>V, aN>=V, aN&MASK==V */
static struct scmp_arg_cmp comparison(char *text)
{
	static const struct {
		const char *sign;
		enum scmp_compare op;
	} SIGNS[] = {{"==", SCMP_CMP_EQ}, {"!=", SCMP_CMP_NE}, {"<=", SCMP_CMP_LE},
		     {">=", SCMP_CMP_GE}, {"<", SCMP_CMP_LT},  {">", SCMP_CMP_GT}};
	unsigned argument = text[0] == 'a' && text[1] ? (unsigned)(text[1] - '0') : 6;
	char *rest = text + 2, *equals;

	if (argument > 5)
		fail("`%s` does not begin with a0 … a5", text);
	if (*rest == '&') {
		equals = strstr(rest, "==");
		if (!equals)
			fail("`%s`: a mask is followed by ==", text);
		*equals = '\0';
		return SCMP_CMP64(argument, SCMP_CMP_MASKED_EQ, value(rest + 1), value(equals + 2));
	}
	for (size_t i = 0; i < sizeof(SIGNS) / sizeof(*SIGNS); i++)
		if (!strncmp(rest, SIGNS[i].sign, strlen(SIGNS[i].sign)))
			return SCMP_CMP64(argument, SIGNS[i].op, value(rest + strlen(SIGNS[i].sign)));
	fail("`%s` is not a comparison", text);
}

static void rule(scmp_filter_ctx filter, uint32_t action, char *word[], int count)
{
	struct scmp_arg_cmp arguments[6];
	int number, error, n = 0;
	bool optional;

	if (count < 1)
		fail("a system call is missing");
	optional = word[0][0] == '?';
	word[0] += optional ? 1 : 0;
	number = seccomp_syscall_resolve_name(word[0]);
	if (number == __NR_SCMP_ERROR) {
		if (optional)
			return;
		fail("`%s` is not a system call that this libseccomp knows", word[0]);
	}
	for (; n < count - 1; n++) {
		if (n == 6)
			fail("too many comparisons");
		arguments[n] = comparison(word[n + 1]);
	}
	error = seccomp_rule_add_array(filter, action, number, n, arguments);
	if (error == -EACCES) /* it says what the default says */
		return;
	check(error, word[0]);
}

static uint32_t parse_action(char *word[], int *used)
{
	*used = 1;
	if (!strcmp(word[0], "allow"))
		return SCMP_ACT_ALLOW;
	if (!strcmp(word[0], "kill"))
		return SCMP_ACT_KILL_PROCESS;
	if (!strcmp(word[0], "log"))
		return SCMP_ACT_LOG;
	if (strcmp(word[0], "deny"))
		fail("`%s` is not one of default, arch, allow, deny, kill, log", word[0]);
	*used = 2;
	if (!word[1])
		fail("deny which error?");
	return SCMP_ACT_ERRNO(error_number(word[1]));
}

/* The other architectures whose programs run on this one's kernels. One that this libseccomp does
 * not know is killed by the filter, as any unknown one. */
static void add_compat(scmp_filter_ctx filter)
{
	static const uint32_t FAMILIES[][3] = {
		{SCMP_ARCH_X86_64, SCMP_ARCH_X86, SCMP_ARCH_X32},
		{SCMP_ARCH_AARCH64, SCMP_ARCH_ARM},
		{SCMP_ARCH_MIPS64, SCMP_ARCH_MIPS, SCMP_ARCH_MIPS64N32},
		{SCMP_ARCH_MIPSEL64, SCMP_ARCH_MIPSEL, SCMP_ARCH_MIPSEL64N32},
		{SCMP_ARCH_PPC64, SCMP_ARCH_PPC},
		{SCMP_ARCH_S390X, SCMP_ARCH_S390},
	};

	for (size_t i = 0; i < sizeof(FAMILIES) / sizeof(*FAMILIES); i++)
		if (FAMILIES[i][0] == seccomp_arch_native())
			for (int n = 1; n < 3 && FAMILIES[i][n]; n++)
				check(seccomp_arch_add(filter, FAMILIES[i][n]), "add an architecture");
}

static scmp_filter_ctx begin(char *word[], int count)
{
	scmp_filter_ctx filter;
	int used;

	if (strcmp(word[0], "default") || count < 2)
		fail("a policy begins with `default ACTION`");
	filter = seccomp_init(parse_action(word + 1, &used));
	if (!filter || used != count - 1)
		fail("wrong default action");
	/* a binary tree: twice as fast to run as a chain of 60 comparisons, and to load */
	check(seccomp_attr_set(filter, SCMP_FLTATR_CTL_OPTIMIZE, 2), "optimize");
	/* libseccomp asks the kernel, in the first call that needs it, what it can do */
	if (seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS)) {
		fputs("error: filters that end a process (seccomp, Linux 4.14)\n", stderr);
		exit(5);
	}
	return filter;
}

static scmp_filter_ctx line(scmp_filter_ctx filter, char *word[], int count)
{
	uint32_t action;
	int used;

	if (!filter)
		return begin(word, count);
	if (!strcmp(word[0], "arch")) {
		if (count != 2 || (strcmp(word[1], "compat") && strcmp(word[1], "native")))
			fail("arch is `compat` or `native`");
		if (!strcmp(word[1], "compat"))
			add_compat(filter);
		return filter;
	}
	action = parse_action(word, &used);
	rule(filter, action, word + used, count - used);
	return filter;
}

int main(int argc, char **argv)
{
	char *text = NULL, *comment, *word[WORDS_MAX + 1];
	scmp_filter_ctx filter = NULL;
	size_t size = 0;
	int count, error;

	if (argc > 1) {
		fprintf(stderr, "usage: %s <policy >filter\n", argv[0]);
		return 2;
	}
	while (getline(&text, &size, stdin) >= 0) {
		char *cursor = text;

		line_number++;
		comment = strchr(text, '#');
		if (comment)
			*comment = '\0';
		for (count = 0; (word[count] = strtok_r(count ? NULL : cursor, " \t\n", &cursor)); count++)
			if (count == WORDS_MAX)
				fail("too many words");
		if (count)
			filter = line(filter, word, count);
	}
	if (!filter)
		fail("the policy is empty");
	error = seccomp_export_bpf(filter, STDOUT_FILENO);
	if (error < 0) {
		fprintf(stderr, "error: write the filter: %s\n", strerror(-error));
		return 7;
	}
	seccomp_release(filter);
	free(text);
	return 0;
}
