#include "comm/report.h"

#include <signal.h>
#include <unistd.h>

#include <sstream>

namespace metroplex::comm {
namespace {

constexpr const char* kNoteNames[] = {"ready", "signal", "again"};  // indexed by NoteKind

struct StopSignal {
  int number;
  const char* name;
};
constexpr StopSignal kStopSignals[] = {
    {SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"}, {SIGHUP, "SIGHUP"}, {SIGUSR1, "SIGUSR1"}};

}  // namespace

std::vector<int> stop_signals() {
  std::vector<int> signals;
  for (const StopSignal& signal : kStopSignals) {
    struct sigaction now {};
    const bool ignored = ::sigaction(signal.number, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
    if (!ignored) signals.push_back(signal.number);
  }
  return signals;
}

const char* stop_signal_name(int signal) {
  for (const StopSignal& one : kStopSignals) {
    if (one.number == signal) return one.name;
  }
  return "a signal";
}

std::string encode(const Report& report) {
  const std::string cause = report.cause.substr(0, 3000);
  return (report.own ? "own " : "peer ") + std::to_string(report.exit_code) + " " + std::to_string(cause.size()) +
         "\n" + cause;
}

std::optional<Report> decode_report(const std::string& text) {
  const size_t line = text.find('\n');
  if (line == std::string::npos) return std::nullopt;
  std::istringstream head(text.substr(0, line));
  std::string whose;
  Report report;
  size_t size = 0;
  if (!(head >> whose >> report.exit_code >> size) || text.size() - line - 1 < size) return std::nullopt;
  report.own = whose == "own";
  report.cause = text.substr(line + 1, size);
  return report;
}

void write_note(int fd, Note note) {
  if (fd < 0) return;
  char line[16];
  size_t size = 0;
  for (const char* word = kNoteNames[static_cast<size_t>(note.kind)]; *word != '\0'; ++word) line[size++] = *word;
  line[size++] = ' ';
  line[size++] = static_cast<char>('0' + note.signal / 10 % 10);
  line[size++] = static_cast<char>('0' + note.signal % 10);
  line[size++] = '\n';
  [[maybe_unused]] const ssize_t written = ::write(fd, line, size);
}

std::vector<Note> parse_notes(std::string& text) {
  std::vector<Note> notes;
  for (size_t line = text.find('\n'); line != std::string::npos; line = text.find('\n')) {
    std::istringstream head(text.substr(0, line));
    std::string word;
    Note note;
    head >> word >> note.signal;
    bool known = false;
    for (const NoteKind kind : {NoteKind::ready, NoteKind::signal, NoteKind::again}) {
      if (word != kNoteNames[static_cast<size_t>(kind)]) continue;
      note.kind = kind;
      known = true;
    }
    if (!known) break;
    notes.push_back(note);
    text.erase(0, line + 1);
  }
  return notes;
}

}  // namespace metroplex::comm
