// metroplex: what integers and files can answer.
#include "commands.h"
#include "program.h"

namespace metroplex::apps {

static std::string message_of(const std::exception& error, bool) { return error.what(); }

}  // namespace metroplex::apps

int main(int argc, char** argv) {
  return metroplex::apps::run_program({metroplex::apps::commands(), metroplex::apps::message_of}, argc, argv);
}
