// The main() of both executables. Runs the command argv[1], and converts exceptions to a message on stderr and an
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
#include <sys/resource.h>
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
  out << "metroplex: trains large Transformers in any parallel layout\n\nUsage: metroplex COMMAND [options]; "
         "metroplex help COMMAND|KEY; metroplex --version\n\n";
  for (const Command& command : program.commands) {
    out << "  " << command.name << std::string(14 - std::strlen(command.name), ' ') << command.summary << "\n";
  }
}

// Keeps freed memory in the process. Activations are freed and allocated every step, and page faults would cost more
// than the arithmetic.
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, -1);
}

// Handles exceptions that cannot be caught. They occur in a destructor of a library that allocates memory, or in a
// library's thread (gloo's, if no descriptor is free for a connection). Allocates no memory.
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
          "the ports of this process while its ranks start; raise ulimit -Hn, or stop that program\n",
          stderr);
      std::_Exit(kExitPeer);
    }
  } catch (...) {}
  usual_terminate();
  std::abort();
}

// Opens /dev/null for closed standard streams. Otherwise the first opened file would get such a descriptor and
// receive printed output. Child processes inherit the streams.
void fill_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) == -1 && errno == EBADF && open("/dev/null", O_RDWR) != stream) std::_Exit(kExitData);
  }
}

// Below these limits libtorch aborts or crashes before main() can report a cause. Its libraries allocate 80 MB
// when they are loaded, and each thread has a stack of RLIMIT_STACK.
void check_limits() {
  struct MinWidth {
    decltype(RLIMIT_DATA) resource;
    const char *name, *option;
    rlim_t bytes;
  };
  for (const MinWidth& least : {MinWidth{RLIMIT_DATA, "RLIMIT_DATA", "-d", 128 << 20},
                                MinWidth{RLIMIT_STACK, "RLIMIT_STACK", "-s", 1 << 20}}) {
    rlimit limit{};
    if (getrlimit(least.resource, &limit) != 0) continue;
    MPX_CHECK(limit.rlim_cur >= least.bytes, "memory", least.name, " = ", limit.rlim_cur, " bytes: must be at least ",
              least.bytes, "; raise it (ulimit ", least.option, ")");
  }
}

// Executes the other program in this process with the same arguments.
[[noreturn]] void become_torch_program(std::vector<char*> words) {
  // The loader of libtorch's libraries crashes without a current directory.
  std::error_code code;
  const bool there = !std::filesystem::current_path(code).empty();
  MPX_CHECK(there, "files", "the current directory no longer exists (", code.message(),
            "); change to one that does, and start again");
  check_limits();
  spin_briefly();
  words.push_back(nullptr);
  const auto path = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "metroplex-torch";
  execv(path.c_str(), words.data());
  throw base::Error("files", path.string() + " cannot be started (" + std::strerror(errno) +
                                 "); it must be in the folder of metroplex: copy both, or build again");
}

// Rewrites "help train" to "train --help", and "help optim.lr" (not a command) to "train --help optim.lr".
void take_help_topic(const Program& program, std::vector<char*>& words) {
  static char help[] = "--help", train[] = "train";
  if (words.size() != 3 || std::strcmp(words[1], "help") != 0) return;
  const bool command = std::any_of(program.commands.begin(), program.commands.end(),
                                   [&](const Command& command) { return std::strcmp(command.name, words[2]) == 0; });
  words =
      command ? std::vector<char*>{words[0], words[2], help} : std::vector<char*>{words[0], train, help, words[2]};
}

// Returns the command words[1]. Returns null after --help and --version, with `code` kExitOk, and for an unknown
// command.
const Command* find_command(const Program& program, const std::vector<char*>& words, int& code) {
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
  std::cerr << "metroplex: unknown command '" << name << "'\n\n";
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
  // In this process and its children a write beyond RLIMIT_FSIZE fails like a write to a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  const EscapedStreams escaped;
  try {
    std::vector<char*> words(argv, argv + argc);
    take_help_topic(program, words);
    int code = kExitOk;
    const Command* const command = find_command(program, words, code);
    if (command != nullptr && command->run == kNeedsTorch) become_torch_program(words);
    if (command != nullptr) code = command->run({words.begin() + 2, words.end()});
    // errno is stale at this point, so the message gives no reason.
    const bool written = std::cout.flush() && std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
    MPX_CHECK(written || code != kExitOk, "files",
              "the output could not be written; is the disk full, or did its reader exit?");
    return code;
  } catch (const std::exception& error) {
    std::cout.flush();
    const bool trace = std::find(argv, argv + argc, std::string("--trace")) != argv + argc;
    // A single write, because rank processes share the stream and could interleave parts of lines.
    const bool memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
    const std::string message =
        memory ? std::string("[memory] ") + base::kOutOfMemory : program.message_of(error, trace);
    std::fputs(("metroplex: " + base::escape_controls(message) + "\n").c_str(), stderr);
    if (program.tell_others) program.tell_others(error);
    // Skips libtorch's teardown, which would delay the failure report to peers by a second or more.
    std::_Exit(to_exit_code(error));
  }
}
