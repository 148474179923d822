// Turns SIGTERM and SIGINT into a flag that the training loop checks once per step, and prints a message. A second
// signal ends the process at once; comm/report.h defines what counts as a second signal.
#pragma once

#include <string>

#include "comm/spawn.h"

namespace metroplex::apps {

struct StopOptions {
  bool saves = true;     // there is a folder for saves
  bool speaks = true;    // this process prints messages; else its launcher or another rank does
  int launcher_fd = -1;  // under our own launcher: receives notes (comm/report.h), and the launcher prints
};

// After this call a signal stops this process after the current step. At most one call per process.
void take_stop_signals(const StopOptions& options);
bool stop_requested();

// For a dialog: SIGINT interrupts a read and is stored until take_interrupt. At most one call per process;
// `launcher_fd` as above.
void take_interrupts(int launcher_fd);
bool take_interrupt();

// Returns the message for a signal, without a newline.
std::string stop_line(int signal, comm::SignalStage stage, bool saves);

}  // namespace metroplex::apps
