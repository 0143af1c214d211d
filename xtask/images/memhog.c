/* memhog [MIB [SECONDS]]: takes that much memory (512 MiB if not said), touching every page, a MiB
 * at a time, says how far it is each 16 MiB, and then holds it for that many seconds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	long mebibytes = argc > 1 ? atol(argv[1]) : 512;

	for (long taken = 1; taken <= mebibytes; taken++) {
		char *chunk = malloc(1 << 20);

		if (chunk == NULL)
			return 1;
		memset(chunk, (int)taken | 1, 1 << 20);
		if (taken % 16 == 0) {
			printf("%ld MiB\n", taken);
			fflush(stdout);
		}
	}
	puts("done");
	fflush(stdout);
	sleep(argc > 2 ? (unsigned)atoi(argv[2]) : 0);
	return 0;
}
