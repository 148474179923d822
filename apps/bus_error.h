// Reading a memory-mapped file that another process has truncated raises SIGBUS. The handler prints the name of the
// file and exits with the code for a damaged file.
#pragma once

namespace metroplex::apps {

void explain_bus_errors();

}  // namespace metroplex::apps
