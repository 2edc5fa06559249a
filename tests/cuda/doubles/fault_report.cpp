// The handler of SIGSEGV and SIGBUS of the driver double.
#include "fault_report.hpp"
#include "memory.hpp"
#include <csignal>

namespace cuda_double {
namespace {

thread_local const char* running = nullptr;
struct sigaction before_segv, before_bus;

// It calls functions that are not safe in a handler; the process ends here either way, and a word is worth
// the risk.
void report(int signal, siginfo_t* info, void*) {
    if (memory::is_device_address(reinterpret_cast<CUdeviceptr>(info->si_addr)))
        complain("host code touched device memory at %p", info->si_addr);
    else if (running)
        complain("%s touched %p, which is no device memory%s", running, info->si_addr,
                 memory::is_view(info->si_addr) ? " any more, or is past the end of it" : "");
    sigaction(signal, signal == SIGSEGV ? &before_segv : &before_bus, nullptr);
    // On return the access is made again, under the handler that was there before.
}

}  // namespace

void set_running(const char* label) { running = label; }

void install_fault_report() {
    struct sigaction action = {};
    action.sa_sigaction = report;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &before_segv);
    sigaction(SIGBUS, &action, &before_bus);
}

}  // namespace cuda_double
