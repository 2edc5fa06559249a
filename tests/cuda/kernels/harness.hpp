// What the tests of kernels share: tests by name, random numbers, launches, comparison with f64.
//
//   PROGRAM              runs every test, prints a line for each and `N passed, N failed`
//   PROGRAM NAME ...     runs tests whose name contains one of these
// ORDERS=N in the environment limits the orders of threads and blocks that each launch is tried in.
#pragma once
#include "../shim/registry.hpp"

#include <cstdarg>
#include <set>
#include <sstream>
#include <tuple>

namespace test {

// ---- tests

struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Test {
    const char* name;
    void (*run)();
};

inline std::vector<Test>& tests() {
    static std::vector<Test> all;
    return all;
}

struct Registered {
    Registered(const char* name, void (*run)()) { tests().push_back({name, run}); }
};

#define TEST(NAME)                                            \
    static void NAME();                                       \
    static const test::Registered registered_##NAME(#NAME, NAME); \
    static void NAME()

[[noreturn]] inline void fail(const std::string& what) { throw Failure(what); }

#define REQUIRE(CONDITION) \
    if (!(CONDITION)) test::fail(std::string(__FILE__) + ":" + std::to_string(__LINE__) + ": " #CONDITION)

// The code of all kernels that tests have launched.
inline std::set<const void*>& launched() {
    static std::set<const void*> all;
    return all;
}

// The result of a run of all tests is that of all kernels.
inline int count_kernels_without_test() {
    int n = 0;
    for (const shim::Kernel& kernel : shim::registry()) {
        if (launched().count(kernel.code)) continue;
        n++;
        std::printf("%s ... FAILED: no test launches it\n", kernel.name);
    }
    return n;
}

inline int run_tests(int argc, char** argv) {
    int passed = 0, failed = 0;
    for (const Test& test : tests()) {
        bool wanted = argc < 2;
        for (int i = 1; i < argc; i++) wanted |= std::strstr(test.name, argv[i]) != nullptr;
        if (!wanted) continue;
        try {
            test.run();
            passed++;
            std::printf("%s ... ok\n", test.name);
        } catch (const std::exception& e) {
            failed++;
            std::printf("%s ... FAILED: %s\n", test.name, e.what());
        }
        std::fflush(stdout);
    }
    if (argc < 2) failed += count_kernels_without_test();
    std::printf("%d passed, %d failed\n", passed, failed);
    return failed > 0 || passed == 0;
}

// ---- numbers

inline double value(f32 x) { return x; }
inline double value(bf16 x) { return to_f32(x); }

template <class T>
T rounded(double x) {
    return from_f32<T>(f32(x));
}

// Half the distance between neighbours near 1: the most that one rounding moves a number, relative to it.
template <class T>
constexpr double HALF_ULP = 0;
template <>
constexpr double HALF_ULP<f32> = 1.0 / (1 << 24);
template <>
constexpr double HALF_ULP<bf16> = 1.0 / (1 << 8);

// Uniform in [-1, 1), a function of (seed, i).
inline double random_at(uint64_t seed, uint64_t i) {
    uint64_t z = seed * 0xd1342543de82ef95ull + (i + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return double((z ^ (z >> 31)) >> 11) / double(1ull << 52) - 1.0;
}

// An array of a kernel, `n` elements that begin `skip` elements after an address divisible by 16. An
// allocation of its own that ends with the last element, so that AddressSanitizer sees an access before it or
// past it.
template <class T>
class Array {
public:
    explicit Array(size_t n, size_t skip = 0) : n_(n) {
        const size_t bytes = (n + skip) * sizeof(T);
        if (posix_memalign(&memory_, 64, std::max<size_t>(bytes, 1)) != 0) std::abort();
        std::memset(memory_, 0xff, bytes);  // NaN: what is read before it is written shows
        first_ = static_cast<T*>(memory_) + skip;
    }
    Array(size_t n, size_t skip, uint64_t seed, double scale = 1.0, double shift = 0.0) : Array(n, skip) {
        for (size_t i = 0; i < n; i++) first_[i] = rounded<T>(shift + scale * random_at(seed, i));
    }
    Array(const Array& other) : Array(other.n_, size_t(other.first_ - static_cast<T*>(other.memory_))) {
        std::memcpy(memory_, other.memory_, (n_ + size_t(first_ - static_cast<T*>(memory_))) * sizeof(T));
    }
    Array& operator=(const Array&) = delete;
    ~Array() { std::free(memory_); }

    T* data() { return first_; }
    const T* data() const { return first_; }
    size_t size() const { return n_; }
    T& operator[](size_t i) { return first_[i]; }
    const T& operator[](size_t i) const { return first_[i]; }
    double at(size_t i) const { return value(first_[i]); }
    bool same_bits(const Array& other) const {
        return n_ == other.n_ && (n_ == 0 || std::memcmp(first_, other.first_, n_ * sizeof(T)) == 0);
    }

private:
    void* memory_ = nullptr;
    T* first_ = nullptr;
    size_t n_;
};

// Where an element is allowed to be: `want` give or take `tolerance`. NaN is never close.
class Worst {
public:
    explicit Worst(std::string what) : what_(std::move(what)) {}
    void check(size_t i, double got, double want, double tolerance) {
        const double excess = std::fabs(got - want) / tolerance;
        if (!(excess <= 1.0) && !(got == want) && !(excess <= worst_)) {
            worst_ = std::isnan(excess) ? INFINITY : excess;
            std::ostringstream text;
            text.precision(9);
            text << what_ << "[" << i << "] = " << got << ", not " << want << " +- " << tolerance;
            text_ = text.str();
        }
    }
    ~Worst() noexcept(false) {
        if (!text_.empty() && std::uncaught_exceptions() == 0) fail(text_);
    }

private:
    std::string what_, text_;
    double worst_ = 0.0;
};

inline std::string text(const char* format, ...) {
    char buffer[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(buffer, sizeof buffer, format, arguments);
    va_end(arguments);
    return buffer;
}

// ---- launches

// Orders of threads and blocks in which results must be the same bits.
inline std::vector<unsigned> orders() {
    const char* limit = std::getenv("ORDERS");
    std::vector<unsigned> all{0, 1, 7, 1234567};
    all.resize(std::min<size_t>(all.size(), limit ? size_t(std::atoi(limit)) : all.size()));
    return all;
}

template <class... P, class... A>
void launch(const char* name, void (*kernel)(P...), dim3 grid, dim3 threads, size_t shared_bytes,
            unsigned order, A... arguments) {
    static_assert(sizeof...(P) == sizeof...(A));
    launched().insert(reinterpret_cast<const void*>(kernel));
    std::tuple<P...> values(static_cast<P>(arguments)...);
    std::apply(
        [&](auto&... v) {
            void* pointers[] = {&v...};
            shim::run(name, kernel, grid, threads, shared_bytes, pointers, order);
        },
        values);
}

// The instance of a kernel for type T, which is f32 or bf16.
#define OF_TYPE(T, NAME)                             \
    ([] {                                            \
        if constexpr (std::is_same_v<T, f32>) {      \
            return NAME##_f32;                       \
        } else {                                     \
            return NAME##_bf16;                      \
        }                                            \
    }())

// `run(order)` launches and returns an output: the same bits in every order. Returns the first one.
template <class F>
auto same_in_every_order(F run) {
    auto first = run(orders()[0]);
    for (size_t i = 1; i < orders().size(); i++) {
        if (!run(orders()[i]).same_bits(first)) fail(text("another result with order %u", orders()[i]));
    }
    return first;
}

// Sizes that end in the middle of chunks, warps and blocks, and starts that are aligned or not.
inline const std::vector<size_t>& odd_sizes() {
    static const std::vector<size_t> sizes{0, 1, 7, 8, 31, 257, 2049, 5000};
    return sizes;
}
inline const std::vector<size_t>& skips() {
    static const std::vector<size_t> all{0, 1};
    return all;
}

}  // namespace test
