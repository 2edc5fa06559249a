// Says what an access to memory that is not there was, before the process dies of it.
#pragma once

namespace cuda_double {

// What the device's thread is running, for the report; null when it is idle. The text must stay.
void set_running(const char* label);

// Reports, then passes the signal on to whoever had it before.
void install_fault_report();

}  // namespace cuda_double
