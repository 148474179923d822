// The rendezvous store: its operations, and clients that are not part of the run.
#include "comm/backends/run_store.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <thread>

#include "comm/backends/run_store_messages.h"
#include "comm/network.h"
#include "support/error_of.h"

namespace metroplex::comm::run_store_test {
namespace {

using namespace std::chrono_literals;
using Bytes = std::vector<uint8_t>;

constexpr const char* kSecret = "of this test";

Bytes bytes(const std::string& text) { return {text.begin(), text.end()}; }

struct Server {
  uint16_t port = 0;
  std::unique_ptr<StoreServer> server;

  explicit Server(const StoreLimits& limits = {.bytes = 64 << 20, .message = 16 << 20, .members = 2}) {
    const auto [fd, number] = listen_at("127.0.0.1");
    port = number;
    server = std::make_unique<StoreServer>(OwnedFd(fd), kSecret, limits);
  }
  c10::intrusive_ptr<StoreClient> client(const std::string& secret = kSecret) const {
    return c10::make_intrusive<StoreClient>(StoreClient::Address{"127.0.0.1", port, secret, 2s, 5s});
  }
  int raw() const {
    std::string error;
    return connect_to("127.0.0.1", port, 2s, error);
  }
};

void send_bytes(int fd, const std::string& text) {
  [[maybe_unused]] const ssize_t sent = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
}

std::string message(char kind, const std::string& text) {
  WatchLink link;
  link.put(kind, text);
  return link.out;
}

// All bytes that the server sends until it closes the connection; nullopt if it stays open for `limit`.
std::optional<std::string> until_closed(int fd, std::chrono::milliseconds limit) {
  std::string text;
  const auto end = std::chrono::steady_clock::now() + limit;
  while (std::chrono::steady_clock::now() < end) {
    char buffer[1024];
    const ssize_t size = ::recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
    if (size > 0) text.append(buffer, static_cast<size_t>(size));
    else if (size == 0 || errno != EAGAIN) return text;
    else std::this_thread::sleep_for(5ms);
  }
  return std::nullopt;
}

bool is_open(StoreClient& client) {
  try {
    client.check({"key"});
    return true;
  } catch (const c10::DistError&) { return false; }
}

TEST(RunStore, OperationsAreThoseOfC10d) {
  const Server server;
  const auto one = server.client(), two = server.client();
  one->set("a", bytes(std::string("x\0y", 3)));
  EXPECT_EQ(two->get("a"), bytes(std::string("x\0y", 3)));
  EXPECT_TRUE(two->check({"a"}));
  EXPECT_FALSE(two->check({"a", "b"}));
  EXPECT_EQ(one->add("n", 5), 5);
  EXPECT_EQ(two->add("n", -7), -2);
  EXPECT_EQ(two->get("n"), bytes("-2"));
  EXPECT_EQ(one->compareSet("c", bytes("old"), bytes("new")), bytes("old"));  // absent, but a value is expected
  EXPECT_FALSE(one->check({"c"}));
  EXPECT_EQ(one->compareSet("c", {}, bytes("first")), bytes("first"));
  EXPECT_EQ(two->compareSet("c", {}, bytes("second")), bytes("first"));
  EXPECT_EQ(two->compareSet("c", bytes("first"), bytes("second")), bytes("second"));
  EXPECT_EQ(one->get("c"), bytes("second"));
  EXPECT_EQ(one->getNumKeys(), 3);
  EXPECT_TRUE(one->deleteKey("c"));
  EXPECT_FALSE(one->deleteKey("c"));
  EXPECT_EQ(one->getNumKeys(), 2);
  const std::string large(3 << 18, 'l');
  one->set("large", bytes(large));
  EXPECT_EQ(two->get("large"), bytes(large));
}

TEST(RunStore, WaitsForAKeyUntilTheTimeout) {
  const Server server;
  const auto one = server.client(), two = server.client();
  std::thread later([&] {
    std::this_thread::sleep_for(100ms);
    two->set("late", bytes("value"));
  });
  EXPECT_EQ(one->get("late"), bytes("value"));
  later.join();
  EXPECT_THROW(one->wait({"never"}, 50ms), c10::DistStoreError);
}

TEST(RunStore, AnotherSecretIsRefusedOnBothSides) {
  const Server server;
  const std::string refusal = test::catch_error([&] { server.client("another"); });
  EXPECT_NE(refusal.find("METROPLEX_SECRET differs between ranks"), std::string::npos) << refusal;
  // A server without the secret can read no value.
  const auto [fd, port] = listen_at("127.0.0.1");
  std::thread fake([fd = fd] {
    int peer = -1;
    for (int i = 0; i < 500 && peer < 0; ++i, std::this_thread::sleep_for(5ms)) peer = ::accept(fd, nullptr, nullptr);
    send_bytes(peer, message('n', "0") + message('w', prove("another", "")));
    until_closed(peer, 5s);
    ::close(peer);
  });
  const StoreClient::Address address{"127.0.0.1", port, kSecret, 2s, 5s};
  EXPECT_THROW(c10::make_intrusive<StoreClient>(address), base::Error);
  fake.join();
  ::close(fd);
}

TEST(RunStore, UnprovenClientsReadAndStoreNothing) {
  const Server server;
  const auto rank = server.client();
  rank->set("key", bytes("hidden value"));
  const std::string request = message('g', pack({"key"}));
  for (const std::string& sent :
       {request, message('h', "0 " + prove(kSecret, "store client 0 0")) + request, message('h', "nothing"),
        message('s', pack({"key", "theirs"})), std::string("GET / HTTP/1.1\r\n\r\n"),
        std::string("h\xff\xff\xff\x7f"), std::string(100000, 'x')}) {
    const int fd = server.raw();
    ASSERT_GE(fd, 0);
    send_bytes(fd, sent);
    const auto answer = until_closed(fd, 3s);
    ASSERT_TRUE(answer) << testing::PrintToString(sent.substr(0, 40));
    EXPECT_EQ(answer->find("hidden value"), std::string::npos);
    ::close(fd);
  }
  const int silent = server.raw();
  EXPECT_TRUE(until_closed(silent, 8s)) << "a client that sends nothing keeps its connection";
  ::close(silent);
  EXPECT_EQ(rank->get("key"), bytes("hidden value"));
}

TEST(RunStore, ValuesAreLimited) {
  constexpr size_t kKeys = 2 * StoreServer::kKeyBytes;
  const Server server({.bytes = 1000 + kKeys, .message = 16 << 20, .members = 2});
  const auto one = server.client(), two = server.client();
  one->set("a", Bytes(900));
  one->set("a", Bytes(950));  // replaces the value
  EXPECT_THROW(one->set("b", Bytes(100)), c10::DistError);
  EXPECT_THROW(one->check({"a"}), c10::DistError) << "the connection goes on";
  two->set("c", Bytes(40));
  EXPECT_THROW(server.client()->set("d", Bytes(10)), c10::DistError) << "951, 41 and 11 bytes";
  EXPECT_TRUE(two->deleteKey("c"));
  EXPECT_TRUE(two->deleteKey("a"));
  two->set("b", Bytes(998));
  EXPECT_THROW(two->add("a", 1), c10::DistError) << "more than 1000 bytes with the key";
  const auto three = server.client();
  three->deleteKey("b");
  three->set("1", {});
  three->set("2", {});
  EXPECT_THROW(three->set("3", Bytes(1000)), c10::DistError) << "each key has a size of its own";
}

TEST(RunStore, LongRequestsAreRefused) {
  const Server server({.bytes = 64 << 20, .message = 1000, .members = 2});
  server.client()->set("a", Bytes(900));
  EXPECT_THROW(server.client()->set("a", Bytes(1000)), c10::DistError);
}

size_t resident_kib() {
  FILE* const file = std::fopen("/proc/self/statm", "r");
  long all = 0, resident = 0;
  const int read = std::fscanf(file, "%ld %ld", &all, &resident);
  std::fclose(file);
  return read == 2 ? static_cast<size_t>(resident) * 4 : 0;
}

// A proven client sends requests without end and receives none of the answers.
TEST(RunStore, AClientThatDoesNotReadHoldsNeitherMemoryNorThread) {
  Server server;
  const auto rank = server.client();
  constexpr size_t kValue = 4 << 20;
  rank->set("large", Bytes(kValue));
  const int fd = server.raw();
  std::string nonce;
  for (char byte = 0; nonce.size() < 5 + 32;) {
    if (::recv(fd, &byte, 1, MSG_DONTWAIT) == 1) nonce += byte;
  }
  send_bytes(fd, message('h', "0 " + prove(kSecret, "store client " + nonce.substr(5) + " 0")));
  std::string requests;
  for (int i = 0; i < 400; ++i) requests += message('g', pack({"large"}));
  const size_t before = resident_kib();
  send_bytes(fd, requests);
  for (int i = 0; i < 20; ++i) rank->add("turns", 1);
  EXPECT_LT(resident_kib(), before + 8 * kValue / 1024) << "of 400 answers";
  server.server.reset();
  ::close(fd);
}

TEST(RunStore, ClientsAreLimitedAndTheRefusalSaysWhy) {
  const Server server({.bytes = 1000, .message = 1000, .members = 1});
  std::vector<c10::intrusive_ptr<StoreClient>> clients;
  for (size_t i = 0; i < 1 + StoreServer::kSpareClients; ++i) clients.push_back(server.client());
  const std::string refusal = test::catch_error([&] { server.client(); });
  EXPECT_NE(refusal.find("it has 9 clients, for 1 ranks; another program holds connections"), std::string::npos)
      << refusal;
  EXPECT_NE(server.server->problems().find("refused 1 connections because its store had more than 1 clients"),
            std::string::npos);
  clients.pop_back();
  bool admitted = false;  // once the server has read the end of the connection
  for (int i = 0; i < 1000 && !admitted; ++i) admitted = test::catch_error([&] { server.client(); }).empty();
  EXPECT_TRUE(admitted);
}

TEST(RunStore, AServerThatHasNoDescriptorsSaysSo) {
  const Server server;
  EXPECT_EQ(server.server->problems(), "");
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server.port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{3, before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &none);
  const int connected = ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address);
  std::string problems;
  for (int i = 0; i < 2000 && problems.empty(); ++i, std::this_thread::sleep_for(5ms))
    problems = server.server->problems();
  ::setrlimit(RLIMIT_NOFILE, &before);
  ::close(fd);
  EXPECT_EQ(connected, 0);
  EXPECT_NE(problems.find("no free file descriptor for a connection; raise RLIMIT_NOFILE"), std::string::npos);
}

// A store drops a connection whose hello is late, here of a client that was stopped.
TEST(RunStore, AConnectionThatIsClosedWithoutAnAnswerIsMadeAgain) {
  const auto [listening, port] = listen_at("127.0.0.1");
  const OwnedFd kept(::dup(listening));
  std::thread late([fd = listening] {
    int peer = -1;
    while ((peer = ::accept(fd, nullptr, nullptr)) < 0) std::this_thread::sleep_for(5ms);
    send_bytes(peer, message('n', "0"));
    ::close(peer);
  });
  const StoreClient::Address address{"127.0.0.1", port, kSecret, 2s, 20s};
  std::unique_ptr<StoreServer> server;
  std::thread then([&, fd = listening] {
    late.join();
    server = std::make_unique<StoreServer>(OwnedFd(fd), kSecret, StoreLimits{1000, 1000, 1});
  });
  const auto client = c10::make_intrusive<StoreClient>(address);
  EXPECT_EQ(client->getNumKeys(), 0);
  then.join();
}

TEST(RunStore, AnotherProgramIsNamedAtOnceAndItsTimesAreTrue) {
  const auto error_at = [](const std::string& answer, bool closes) {
    const auto [fd, port] = listen_at("127.0.0.1");
    std::atomic<bool> over{false};
    std::vector<int> peers;
    std::thread program([&, fd = fd] {
      while (!over) {
        const int peer = ::accept(fd, nullptr, nullptr);
        std::this_thread::sleep_for(2ms);
        if (peer < 0) continue;
        send_bytes(peer, answer);
        if (closes) ::close(peer);
        else peers.push_back(peer);
      }
    });
    const StoreClient::Address address{"127.0.0.1", port, kSecret, 2s, 1s};
    const std::string error = test::catch_error([&] { c10::make_intrusive<StoreClient>(address); });
    over = true;
    program.join();
    for (const int peer : peers) ::close(peer);
    ::close(fd);
    return error;
  };
  for (const char* const answer : {"\x1b[31mSSH-2.0-x\r\n", "HTTP/1.1 400 Bad Request\r\n\r\n"}) {
    const std::string error = error_at(answer, false);
    EXPECT_NE(error.find("does not answer as a rendezvous store; another program has the port"), std::string::npos)
        << error;
    EXPECT_EQ(error.find(" for "), std::string::npos) << "no time: " << error;
  }
  EXPECT_NE(error_at("", false).find("has not answered as a rendezvous store for 1 s"), std::string::npos);
  EXPECT_NE(error_at("", true).find("closes connections and has not answered for 1 s"), std::string::npos);
}

TEST(RunStore, AClosedPortKeepsTheConnectionsThatStay) {
  const Server server;
  const auto rank = server.client(), second = server.client(), third = server.client(), other = server.client();
  rank->stay();
  rank->stay();
  second->stay();
  EXPECT_THROW(third->stay(), c10::DistError) << "more clients than ranks";
  const int unproven = server.raw();
  server.server->close_port();
  for (int i = 0; i < 2000 && is_open(*other); ++i) std::this_thread::sleep_for(5ms);
  EXPECT_FALSE(is_open(*other));
  EXPECT_TRUE(until_closed(unproven, 2s));
  ::close(unproven);
  const int late = server.raw();
  EXPECT_LT(late, 0);
  rank->set("key", bytes("value"));
  EXPECT_EQ(rank->get("key"), bytes("value"));
}

TEST(RunStore, TheEndOfTheServerIsAnErrorOfItsClients) {
  Server server;
  const auto rank = server.client();
  server.server.reset();
  EXPECT_THROW(rank->check({"key"}), c10::DistNetworkError);
}

}  // namespace
}  // namespace metroplex::comm::run_store_test
