/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The terminal of a command: a pty that belongs to the instance (so that `tty`, ttyname and
 * /dev/pts/N are right inside), and outside a relay between it and the caller's terminal. */
#include "exec.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <termios.h>
#include <unistd.h>

static struct termios saved;
static int terminal = -1; /* the descriptor that was made raw */

static int unlock_and_open(int master)
{
	struct statfs fs;
	int unlocked = 0, slave;

	/* The instance may have put anything in this place. Only a devpts answers TIOCGPTPEER with a
	 * terminal, and only its own. */
	if (fstatfs(master, &fs) < 0)
		return -errno;
	if (fs.f_type != DEVPTS_SUPER_MAGIC)
		return -ENODEV;
	if (ioctl(master, TIOCSPTLCK, &unlocked) < 0)
		return -errno;
	slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
	return slave < 0 ? -errno : slave;
}

int pty_open(int *slave)
{
	struct open_how how = {
		.flags = O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK,
		.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
	};
	int master = syscall(SYS_openat2, AT_FDCWD, "dev/pts/ptmx", &how, sizeof(how));

	if (master < 0)
		return -errno;
	*slave = unlock_and_open(master);
	if (*slave < 0) {
		close(master);
		return *slave;
	}
	return master;
}

void terminal_restore(void)
{
	/* SIGTTOU is blocked by the caller: this works from the background too */
	if (terminal >= 0)
		tcsetattr(terminal, TCSADRAIN, &saved);
	terminal = -1;
}

void terminal_raw(void)
{
	struct termios raw;

	if (terminal >= 0 || tcgetattr(STDIN_FILENO, &saved) < 0)
		return;
	raw = saved;
	cfmakeraw(&raw);
	terminal = STDIN_FILENO;
	tcsetattr(terminal, TCSADRAIN, &raw);
}

void terminal_resize(int master)
{
	struct winsize size;

	/* whichever of ours is the terminal */
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		if (!ioctl(fd, TIOCGWINSZ, &size)) {
			ioctl(master, TIOCSWINSZ, &size);
			return;
		}
}

/* One direction. The caller's stdin and stdout stay blocking (the flag would be shared with
 * whoever else has them open), so they are only touched when poll says so, in pieces that a pipe
 * takes whole. */
struct flow {
	int from, to;
	bool ended;
	size_t start, end;
	char data[4096];
};

static bool pending(const struct flow *f)
{
	return f->start < f->end;
}

/* False when there is nothing more now. */
static bool fill(struct flow *f)
{
	ssize_t n = read(f->from, f->data, sizeof(f->data));

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	/* EIO: the last holder of the slave closed it (master), or the terminal hung up (stdin) */
	f->ended = n <= 0;
	f->start = 0;
	f->end = n > 0 ? n : 0;
	return n > 0;
}

static void drain(struct flow *f)
{
	ssize_t n = write(f->to, f->data + f->start, f->end - f->start);

	if (n >= 0)
		f->start += n;
	else if (errno != EAGAIN && errno != EINTR)
		f->start = f->end; /* nobody reads it any more; the command goes on */
}

/* Our input ended without a terminal to say so: type the end-of-file character, twice if a line is
 * unfinished (the first one only flushes it). */
static void type_eof(struct flow *in, bool line_open)
{
	struct termios mode;

	if (tcgetattr(in->to, &mode) < 0 || !(mode.c_lflag & ICANON))
		return;
	in->start = 0;
	in->end = line_open ? 2 : 1;
	memset(in->data, mode.c_cc[VEOF], in->end);
}

static void relay_input(struct flow *in, bool *line_open)
{
	if (!pending(in)) {
		if (fill(in))
			*line_open = in->data[in->end - 1] != '\n' && in->data[in->end - 1] != '\r';
		else if (in->ended)
			type_eof(in, *line_open);
	}
	if (pending(in))
		drain(in);
}

void pty_relay(int master, int signals, bool (*on_signal)(int signals))
{
	struct flow in = {.from = STDIN_FILENO, .to = master}, out = {.from = master, .to = STDOUT_FILENO};
	bool line_open = false, running = true;

	while (running || pending(&out) || (!out.ended && fill(&out))) {
		struct pollfd wait[] = {
			{.fd = signals, .events = POLLIN},
			{.fd = pending(&in) ? master
			       : in.ended   ? -1
					    : in.from,
			 .events = pending(&in) ? POLLOUT : POLLIN},
			{.fd = pending(&out) ? out.to
			       : out.ended   ? -1
					     : master,
			 .events = pending(&out) ? POLLOUT : POLLIN},
		};

		/* Once the command is gone only its last output matters. */
		if (!running)
			wait[1].fd = -1;
		if (poll(wait, 3, -1) < 0 && errno != EINTR)
			return;
		if (wait[0].revents && !on_signal(signals))
			running = false;
		if (wait[1].revents && running)
			relay_input(&in, &line_open);
		if (wait[2].revents)
			pending(&out) ? drain(&out) : (void)fill(&out);
	}
}
