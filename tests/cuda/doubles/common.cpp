// Settings, planned failures and the voice of the doubles.
#include "common.hpp"
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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

// The code of a call that never returns.
constexpr int HANG = -1;

struct Failure {
    std::string symbol;
    long nth = 0;
    int code = 0;
};

// A test that asks for what cannot be read must not pass by failing nothing.
[[noreturn]] void refuse_plan(const std::string& word) {
    complain(
        "CUDA_DOUBLE_FAIL has %s; it takes SYMBOL:NTH:CODE[@RANK] or SYMBOL:NTH:hang[@RANK], several with "
        "commas",
        word.c_str());
    abort();
}

std::vector<Failure> read_plan() {
    std::vector<Failure> plan;
    std::istringstream words(setting("CUDA_DOUBLE_FAIL", ""));
    for (std::string word; std::getline(words, word, ',');) {
        Failure failure;
        char symbol[64], code[16];
        int rank = -1;
        const int n_read = sscanf(word.c_str(), "%63[^:]:%ld:%15[^@]@%d", symbol, &failure.nth, code, &rank);
        if (n_read < 3 || failure.nth < 1) refuse_plan(word);
        failure.symbol = symbol;
        failure.code = strcmp(code, "hang") == 0 ? HANG : atoi(code);
        if (failure.code == 0) refuse_plan(word);
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
    std::unique_lock<std::mutex> lock(mutex);
    const long nth = ++n_calls[symbol];
    lock.unlock();
    const auto planned = std::find_if(plan.begin(), plan.end(), [&](const Failure& failure) {
        return failure.symbol == symbol && failure.nth == nth;
    });
    if (planned == plan.end()) return 0;
    complain("call %ld of %s %s, as CUDA_DOUBLE_FAIL wants", nth, symbol,
             planned->code == HANG ? "hangs" : ("fails with code " + std::to_string(planned->code)).c_str());
    while (planned->code == HANG) pause();
    return planned->code;
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
