// metroplex report: writes an HTML page about one or more runs.
#include <csignal>
#include <iostream>

#include "apps/command.h"
#include "apps/commands.h"
#include "base/bytes_text.h"
#include "base/error.h"
#include "files/file_system.h"
#include "files/same_file.h"
#include "page/html.h"

namespace metroplex::apps {
namespace {

constexpr int kReloadSeconds = 5;

// Blocks SIGINT and SIGTERM, which then end a wait instead of the process.
class StopWait {
 public:
  StopWait() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  }
  // Returns true after a signal, and false after `seconds` without one.
  bool stopped_within(int seconds) const {
    const timespec time{seconds, 0};
    return sigtimedwait(&signals_, nullptr, &time) > 0;
  }

 private:
  sigset_t signals_;
};

void write_page(files::FileSystem& disk, const std::string& path, const std::vector<page::RunReader>& readers,
                const page::PageOptions& options) {
  std::vector<const page::RunData*> runs;
  for (const page::RunReader& reader : readers) runs.push_back(&reader.run());
  const std::string text = page::make_page(runs, options);
  disk.write_output(path, text);
  std::cout << "wrote " << path << " (" << base::bytes_text(static_cast<double>(text.size())) << ")" << std::endl;
}

// Rewrites the page whenever a file grows or is replaced; keeps it while a file is absent. The last page does not
// reload itself.
void follow(files::FileSystem& disk, const std::string& path, std::vector<page::RunReader>& readers) {
  const StopWait stop;
  write_page(disk, path, readers, {kReloadSeconds});
  while (!stop.stopped_within(1)) {
    bool grown = false;
    for (page::RunReader& reader : readers) grown |= reader.read_more();
    if (grown) write_page(disk, path, readers, {kReloadSeconds});
  }
  write_page(disk, path, readers, {});
}

}  // namespace

int run_report(const std::vector<std::string>& arguments) {
  CLI::App app(
      "Writes an HTML page about runs from their files of train.metrics_file: loss, speed, memory, time, slowest\n"
      "ranks, expert loads, layout and configuration. The page needs no other file and no network.",
      "metroplex report");
  std::vector<std::string> runs;
  std::string output = "report.html";
  bool follows = false;
  app.add_option("run", runs, "metrics files, or the directories that contain them; several runs share the charts")
      ->required();
  app.add_option("--output,-o", output, "the page; an existing file is replaced")
      ->check(no_file)
      ->capture_default_str();
  app.add_flag("--follow", follows, "rewrite the page while the files grow, until Ctrl-C; the page reloads itself");
  app.footer("Examples:\n  metroplex report runs/a --follow\n  metroplex report runs/a runs/b --output compare.html");
  int exit_code = 0;
  if (!parse(app, arguments, exit_code)) return exit_code;
  files::PosixFileSystem disk;
  std::vector<page::RunReader> readers = page::read_runs(disk, runs);
  std::vector<std::string> inputs;
  for (const page::RunReader& reader : readers) inputs.push_back(reader.run().path);
  files::check_outputs(disk, {{"--output", output}}, inputs);
  if (follows) follow(disk, output, readers);
  else write_page(disk, output, readers, {});
  return 0;
}

}  // namespace metroplex::apps
