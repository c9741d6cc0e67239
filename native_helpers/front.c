/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * `ctrmgr` on the PATH: `exec` of a running instance becomes ctrmgr-exec at once, everything else (and every `exec`
 * that is not plainly right) becomes the Python program, which says what is wrong. Python alone takes ten times as long
 * to start as this. */
#include "common.h"

#include <ctype.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>

#define NAME_MAX_BYTES 63
#define DEPTH          5 /* PREFIX/lib/pythonX.Y/site-packages/ctrmgr/_libexec */

/* The rules of an instance's name (backend/record.py); a colon would be a remote's. */
static bool plain_name(const char *name)
{
	size_t length = strnlen(name, NAME_MAX_BYTES + 1);

	if (!length || length > NAME_MAX_BYTES || !isalpha((unsigned char)name[0]) || name[length - 1] == '-')
		return false;
	for (; *name; name++)
		if (!isalnum((unsigned char)*name) && *name != '-')
			return false;
	return true;
}

/* Those options of `exec` that ctrmgr-exec has, too. */
static const struct option {
	const char *name;
	char letter;
	bool has_value;
} OPTIONS[] = {
	{"--user", 'u', true}, {"--group", 'g', true}, {"--cwd", 'C', true},
	{"--env", '\0', true}, {"--tty", 't', false},  {"--no-tty", 'T', false},
};

/* The option that a word is, and its value if that is in the same word. */
static const struct option *find_option(const char *word, const char **value)
{
	size_t length = strcspn(word, "=");

	for (size_t i = 0; i < ARRAY_SIZE(OPTIONS); i++) {
		const struct option *o = &OPTIONS[i];

		if (!strncmp(word, o->name, length) && !o->name[length]) {
			*value = word[length] ? word + length + 1 : NULL;
			return o;
		}
		if (word[1] && word[1] == o->letter) {
			*value = word[2] ? word + 2 : NULL;
			return o;
		}
	}
	return NULL;
}

/* Reads `[OPTION…] NAME [OPTION…] [--] COMMAND…` as cli/command.py does, into what ctrmgr-exec gets. Returns the name,
 * or NULL for what that had better look at. */
static const char *read_line(char **word, char **into)
{
	const char *name = NULL, *value;
	int ttys = 0;

	for (; *word; word++) {
		const struct option *o;

		if (!strcmp(*word, "--")) {
			word++;
			break;
		}
		if ((*word)[0] != '-' || !(*word)[1]) {
			if (name)
				break;
			name = *word;
			continue;
		}
		o = find_option(*word, &value);
		if (!o || (!o->has_value && (value || ttys++)))
			return NULL;
		*into++ = (char *)o->name;
		if (!o->has_value)
			continue;
		value = value ? value : *++word;
		if (!value || !*value || (!strcmp(o->name, "--env") && (*value == '=' || !strchr(value, '='))) ||
		    (o->letter == 'u' && strchr(value, ':'))) /* USER:GROUP */
			return NULL;
		*into++ = (char *)value;
	}
	if (!name || !plain_name(name) || !*word)
		return NULL;
	*into++ = "--";
	while (*word)
		*into++ = *word++;
	return name;
}

/* RUN/NAME, if it has a living monitor: that holds the lock on its `state`. */
static bool running(const char *name, char *path, size_t size)
{
	const char *run = getenv("CTRMGR_RUN_DIR"), *own = getenv("XDG_RUNTIME_DIR");
	bool is_root = geteuid() == 0, is_locked;
	OWNED int fd = -1;

	if (!run || !*run)
		run = is_root ? "/run/ctrmgr" : own;
	else
		is_root = true; /* it is the folder itself */
	if (!run || *run != '/' ||
	    (size_t)snprintf(path, size, "%s%s/%s/state", run, is_root ? "" : "/ctrmgr", name) >= size)
		return false;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	is_locked = flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
	strcpy(strrchr(path, '/') + 1, "control");
	return is_locked;
}

static void become_exec(const char *here, int count, char **words)
{
	char program[4096 + 32], control[4096], kind[256] = "TERM=", *environment[] = {NULL, NULL};
	char **argument = calloc(2 * count + 8, sizeof(char *));
	const char *term = getenv("TERM"), *name;

	name = argument && !getenv("CTRMGR_LIBEXEC") ? read_line(words, argument + 3) : NULL;
	if (!name || !running(name, control, sizeof(control)))
		return;
	argument[0] = "ctrmgr-exec";
	argument[1] = "--control";
	argument[2] = control;
	if (term && strlen(term) < sizeof(kind) - strlen(kind))
		environment[0] = strcat(kind, term);
	snprintf(program, sizeof(program), "%s/ctrmgr-exec", here);
	execve(program, argument, environment);
}

/* Python answers ctrl-c with a traceback until our own code runs: that lets it through when it can hear it
 * (cli/main.py). */
static void become_python(const char *program, char **argv)
{
	sigset_t held;

	sigemptyset(&held);
	sigaddset(&held, SIGINT);
	sigprocmask(SIG_BLOCK, &held, NULL);
	execv(program, argv);
}

int main(int argc, char **argv)
{
	char here[4096], *slash;
	ssize_t length = readlink("/proc/self/exe", here, sizeof(here) - 32);
	struct stat own, other;

	here[length > 0 ? length : 0] = '\0';
	slash = strrchr(here, '/');
	if (!slash) {
		fprintf(stderr, "error: `/proc/self/exe` cannot be read: %s\n", strerror(errno));
		return 7;
	}
	*slash = '\0';
	if (argc > 2 && !strcmp(argv[1], "exec"))
		become_exec(here, argc - 2, argv + 2);
	for (int i = 0; i < DEPTH && slash; i++) {
		slash = strrchr(here, '/');
		if (slash)
			*slash = '\0';
	}
	strcat(here, "/bin/ctrmgr");
	if (stat("/proc/self/exe", &own) < 0 || stat(here, &other) < 0 ||
	    (own.st_dev == other.st_dev && own.st_ino == other.st_ino))
		errno = ENOENT;
	else
		become_python(here, argv);
	fprintf(stderr, "error: `%s`: %s\n\nhint: is ctrmgr installed whole?\n", here, strerror(errno));
	return 7;
}
