/* The collectives of the acceptance benchmark as a plain MPI loop, measured the same way: calls begin after a
 * barrier, a call is over when its slowest rank is through. Prints a line per operation and size: op bytes
 * mean_us busbw_gb_per_s.
 *
 *   loop ITERATIONS WARMUP BYTES ...
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, BROADCAST, POINT_TO_POINT, N_OPS };
static const char* names[N_OPS] = {"all_gather", "library_reduce_scatter", "all_reduce", "broadcast",
                                   "point_to_point"};

/* There and back between the ranks of each pair, half of the ranks apart; of an odd number the last has
 * nobody. */
static void ping_pong(float *inp, float *out, int numel)
{
    int n, rank;
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int half = n / 2, first = rank < half, peer = first ? rank + half : rank - half;
    if (rank >= 2 * half)
        return;
    if (first)
        MPI_Send(inp, numel, MPI_FLOAT, peer, 0, MPI_COMM_WORLD);
    MPI_Recv(out, numel, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (!first)
        MPI_Send(inp, numel, MPI_FLOAT, peer, 0, MPI_COMM_WORLD);
}

static void call(int op, float *inp, float *out, int part)
{
    switch (op) {
    case ALL_GATHER: MPI_Allgather(inp, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD); break;
    case REDUCE_SCATTER: MPI_Reduce_scatter_block(inp, out, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case ALL_REDUCE: MPI_Allreduce(inp, out, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case BROADCAST: MPI_Bcast(inp, part, MPI_FLOAT, 0, MPI_COMM_WORLD); break;
    case POINT_TO_POINT: ping_pong(inp, out, part); break;
    }
}

int main(int argc, char **argv)
{
    int n, rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc < 4) {
        fprintf(stderr, "usage: loop ITERATIONS WARMUP BYTES ...\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int iterations = atoi(argv[1]), warmup = atoi(argv[2]);
    double share = (n - 1.0) / n, factors[N_OPS] = {share, share, 2 * share, 1, 1};
    for (int op = 0; op < N_OPS; op++) {
        for (int i = 3; i < argc; i++) {
            long bytes = atol(argv[i]);
            int whole = op == ALL_REDUCE || op == BROADCAST || op == POINT_TO_POINT;
            long part = bytes / 4 / (whole ? 1 : n);
            if (part < 1)
                part = 1;
            long numel = part * (whole ? 1 : n);
            float *inp = calloc(numel, sizeof *inp), *out = calloc(numel, sizeof *out);
            double sum = 0;
            for (int j = -warmup; j < iterations; j++) {
                MPI_Barrier(MPI_COMM_WORLD);
                double began = MPI_Wtime(), took, slowest;
                call(op, inp, out, (int)part);
                took = (MPI_Wtime() - began) / (op == POINT_TO_POINT ? 2 : 1);
                MPI_Allreduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
                if (j >= 0)
                    sum += slowest;
            }
            double mean = sum / iterations;
            if (rank == 0)
                printf("%s %ld %.3f %.6f\n", names[op], numel * 4, mean * 1e6,
                       numel * 4 / mean / 1e9 * factors[op]);
            free(inp);
            free(out);
        }
    }
    MPI_Finalize();
    return 0;
}
