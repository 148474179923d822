// The main() of both executables: runs the command argv[1], and turns what it throws into a message on stderr and an
// exit code.
#include "program.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iostream>
#include <new>
#include <typeinfo>

#include <cxxabi.h>
#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include "base/error.h"
#include "base/out_of_memory.h"
#include "base/utf8.h"
#include "bus_error.h"
#include "console.h"
#include "omp_spins.h"

namespace metroplex::apps {
namespace {

void print_usage(const Program& program, std::ostream& out) {
  out << "metroplex: training of large Transformers in any parallel layout\n\nUsage: metroplex COMMAND [options]; "
         "metroplex help COMMAND|KEY; metroplex --version\n\n";
  for (const Command& command : program.commands) {
    out << "  " << command.name << std::string(14 - std::strlen(command.name), ' ') << command.summary << "\n";
  }
}

// Activations come and go every step: giving their pages back to the system and faulting them in again costs more
// than the arithmetic on them.
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, -1);
}

// An exception that cannot be caught: in a destructor of a library that takes memory, or in a library's own thread
// (gloo's, which finds no free descriptor for a connection). Takes no memory.
std::terminate_handler usual_terminate = nullptr;
[[noreturn]] void on_terminate() {
  const std::type_info* const type = abi::__cxa_current_exception_type();
  if (type != nullptr && *type == typeid(std::bad_alloc)) {
    for (const char* text : {"metroplex: [memory] ", base::kOutOfMemory, "\n"}) std::fputs(text, stderr);
    std::_Exit(kExitConfig);
  }
  try {
    if (type != nullptr) throw;
  } catch (const std::exception& error) {
    if (std::strstr(error.what(), std::strerror(EMFILE)) != nullptr) {
      std::fputs(
          "metroplex: [comm] no free file descriptor (RLIMIT_NOFILE) for a connection: another program connects to "
          "the ports of this process while its ranks start; raise ulimit -Hn, or keep it away\n",
          stderr);
      std::_Exit(kExitPeer);
    }
  } catch (...) {}
  usual_terminate();
  std::abort();
}

// A file takes the lowest free number: where a standard stream is closed, the first file opened would be written to
// by all that prints. The executables and ranks started from here inherit these.
void fill_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) == -1 && errno == EBADF && open("/dev/null", O_RDWR) != stream) std::_Exit(kExitData);
  }
}

// Same process, same arguments, another executable.
[[noreturn]] void become_torch_program(std::vector<char*> words) {
  // The loader of libtorch's libraries dies of it.
  std::error_code code;
  const bool there = !std::filesystem::current_path(code).empty();
  MPX_CHECK(there, "files", "the current directory is not there any more (", code.message(),
            "); go to one that is, and start again");
  spin_briefly();
  words.push_back(nullptr);
  const auto path = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "metroplex-torch";
  execv(path.c_str(), words.data());
  throw base::Error("files", path.string() + " cannot be started (" + std::strerror(errno) +
                                 "); it belongs beside metroplex: copy both, or build again");
}

// "help train" is "train --help", and "help optim.lr", where no command is called so, "train --help optim.lr".
void take_help_topic(const Program& program, std::vector<char*>& words) {
  static char help[] = "--help", train[] = "train";
  if (words.size() != 3 || std::strcmp(words[1], "help") != 0) return;
  const bool command = std::any_of(program.commands.begin(), program.commands.end(),
                                   [&](const Command& c) { return std::strcmp(c.name, words[2]) == 0; });
  words =
      command ? std::vector<char*>{words[0], words[2], help} : std::vector<char*>{words[0], train, help, words[2]};
}

// The command words[1]; null after an answer to --help and --version, which leaves `code` at kExitOk, and to what is
// no command.
const Command* command_of(const Program& program, const std::vector<char*>& words, int& code) {
  const std::string name = words.size() > 1 ? words[1] : "--help";
  if (name == "--help" || name == "-h" || name == "help") {
    print_usage(program, std::cout);
    return nullptr;
  }
  if (name == "--version") {
    std::cout << "metroplex " << METROPLEX_VERSION << "\n";
    return nullptr;
  }
  for (const Command& command : program.commands) {
    if (name == command.name) return &command;
  }
  std::cerr << "metroplex: there is no command '" << name << "'\n\n";
  print_usage(program, std::cerr);
  code = kExitConfig;
  return nullptr;
}

}  // namespace
}  // namespace metroplex::apps

int main(int argc, char** argv) {
  using namespace metroplex;
  using namespace metroplex::apps;
  const Program program = this_program();
  fill_closed_streams();
  keep_freed_memory();
  explain_bus_errors();
  usual_terminate = std::set_terminate(on_terminate);
  // Here and in what is started from here a write over the limit of file sizes fails as on a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  const EscapedStreams escaped;
  try {
    std::vector<char*> words(argv, argv + argc);
    take_help_topic(program, words);
    int code = kExitOk;
    const Command* const command = command_of(program, words, code);
    if (command != nullptr && command->run == kNeedsTorch) become_torch_program(words);
    if (command != nullptr) code = command->run({words.begin() + 2, words.end()});
    // What went wrong earlier has left no errno.
    const bool written = std::cout.flush() && std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
    MPX_CHECK(written || code != kExitOk, "files",
              "the output could not be written; is the disk full, or its reader gone?");
    return code;
  } catch (const std::exception& error) {
    std::cout.flush();
    const bool trace = std::find(argv, argv + argc, std::string("--trace")) != argv + argc;
    // One write: ranks that are processes share the stream, and theirs would come between the parts of a line.
    const bool memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
    const std::string message =
        memory ? std::string("[memory] ") + base::kOutOfMemory : program.message_of(error, trace);
    std::fputs(("metroplex: " + base::escape_controls(message) + "\n").c_str(), stderr);
    if (program.tell_others) program.tell_others(error);
    // Peers wait to hear of a failure: libtorch's own teardown would keep them a second or more.
    std::_Exit(exit_code_of(error));
  }
}
