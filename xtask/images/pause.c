/* Holds a pod's namespaces: sleeps until told to end, and reaps what is handed to it as pid 1. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal)
{
	(void)signal;
	_exit(0);
}

static void reap(int signal)
{
	(void)signal;
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
}

int main(void)
{
	struct sigaction on_end = { .sa_handler = end };
	struct sigaction on_child = { .sa_handler = reap, .sa_flags = SA_NOCLDSTOP };

	sigaction(SIGINT, &on_end, NULL);
	sigaction(SIGTERM, &on_end, NULL);
	sigaction(SIGCHLD, &on_child, NULL);
	for (;;)
		pause();
}
