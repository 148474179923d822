// SIGTERM and SIGINT as a flag that the training loop asks for once a step, and one line that says so. The second one
// ends the process at once; comm/report.h says what counts as a second one.
#pragma once

#include <string>

#include "comm/spawn.h"

namespace metroplex::apps {

struct StopOptions {
  bool saves = true;     // there is a folder to save to
  bool speaks = true;    // this process says what happens; else its launcher or another rank does
  int launcher_fd = -1;  // under our own launcher: where it is told (comm/report.h), which then says it
};

// From here on this process stops after a step when it is asked to. Once a process.
void take_stop_signals(const StopOptions& options);
bool stop_requested();

// For a dialog: SIGINT interrupts a read and is remembered until it is taken. Once a process; `launcher_fd` as above.
void take_interrupts(int launcher_fd);
bool take_interrupt();

// What is said of a signal, without a newline.
std::string stop_line(int signal, comm::SignalStage stage, bool saves);

}  // namespace metroplex::apps
