// Reading a mapped file that somebody else has truncated is a signal, not an error code. The handler says which file
// it was, as every other error does, and ends the process with the code of a damaged file.
#pragma once

namespace metroplex::apps {

void explain_bus_errors();

}  // namespace metroplex::apps
