// Settings, planned failures and the voice of the doubles.
#include "common.hpp"
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <unistd.h>
#include <vector>

namespace cuda_double {

int process_rank() {
    static const int rank = [] {
        for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"})
            if (const char* text = getenv(name)) return atoi(text);
        return 0;
    }();
    return rank;
}

std::string setting(const char* name, const std::string& otherwise) {
    const char* text = getenv(name);
    return text && *text ? text : otherwise;
}

long long number_setting(const char* name, long long otherwise) {
    const char* text = getenv(name);
    if (!text || !*text) return otherwise;
    char* end = nullptr;
    const long long number = strtoll(text, &end, 10);
    if (*end != '\0') {
        complain("%s=%s is not a number", name, text);
        abort();
    }
    return number;
}

namespace {

struct Failure {
    std::string symbol;
    long nth = 0;
    int code = 0;
};

// A test that asks for what cannot be read must not pass by failing nothing.
[[noreturn]] void refuse_plan(const std::string& word) {
    complain("CUDA_DOUBLE_FAIL has %s; it takes SYMBOL:NTH:CODE[@RANK], several with commas", word.c_str());
    abort();
}

std::vector<Failure> read_plan() {
    std::vector<Failure> plan;
    std::istringstream words(setting("CUDA_DOUBLE_FAIL", ""));
    for (std::string word; std::getline(words, word, ',');) {
        Failure failure;
        char symbol[64];
        int rank = -1;
        const int n_read = sscanf(word.c_str(), "%63[^:]:%ld:%d@%d", symbol, &failure.nth, &failure.code, &rank);
        if (n_read < 3 || failure.nth < 1 || failure.code == 0) refuse_plan(word);
        failure.symbol = symbol;
        if (n_read == 3 || rank == process_rank()) plan.push_back(failure);
    }
    return plan;
}

}  // namespace

int planned_failure(const char* symbol) {
    static const std::vector<Failure> plan = read_plan();
    if (plan.empty()) return 0;
    static std::mutex mutex;
    static std::map<std::string, long> n_calls;
    const std::lock_guard<std::mutex> lock(mutex);
    const long nth = ++n_calls[symbol];
    for (const Failure& failure : plan) {
        if (failure.symbol == symbol && failure.nth == nth) {
            complain("call %ld of %s fails with code %d, as CUDA_DOUBLE_FAIL wants", nth, symbol, failure.code);
            return failure.code;
        }
    }
    return 0;
}

void complain(const char* format, ...) {
    char line[1024];
    const int head = snprintf(line, sizeof line, "[cuda double, rank %d] ", process_rank());
    va_list arguments;
    va_start(arguments, format);
    const int body = vsnprintf(line + head, sizeof line - head - 1, format, arguments);
    va_end(arguments);
    size_t length = head + (body > 0 ? body : 0);
    if (length > sizeof line - 2) length = sizeof line - 2;
    line[length] = '\n';
    // One write: lines of several ranks must not mix. Nothing to be done where it fails.
    if (write(STDERR_FILENO, line, length + 1) < 0) return;
}

}  // namespace cuda_double
