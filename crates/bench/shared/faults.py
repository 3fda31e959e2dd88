# A proxy on loopback between a server and its object store that fails in a chosen way.
#
# Used by figures.py. It is the proxy of crates/shared/tests/fixture for the real binary: one thread for each connection,
# and the fault can be changed while requests are on their way. It must never fail in a way that was not chosen.
import socket
import threading
import time

METHODS = (b"GET ", b"PUT ", b"HEAD ", b"POST ", b"DELETE ")


class Proxy:
    """Each request is counted with its time. `fault` is a pair of a name and a value, or None."""

    def __init__(self, target):
        self.target = target
        self.fault = None
        self.latency = 0.0
        self.requests = []
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def endpoint(self):
        return f"http://127.0.0.1:{self.port}"

    def kind(self):
        return self.fault[0] if self.fault else None

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        try:
            server = socket.create_connection(self.target)
        except OSError:
            client.close()
            return
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=self.replies, args=(server, client), daemon=True).start()
        try:
            while chunk := client.recv(1 << 18):
                if chunk.startswith(METHODS):
                    self.requests.append((time.perf_counter(), chunk.split(b" ", 2)[1].decode(errors="replace")))
                    time.sleep(self.latency)
                    if self.kind() == "latency":
                        time.sleep(self.fault[1])
                kind = self.kind()
                if kind == "reset":
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    break
                if kind == "status" or (kind == "full" and chunk.startswith(b"PUT ")):
                    status = self.fault[1]
                    client.sendall(f"HTTP/1.1 {status} Refused\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode())
                    break
                server.sendall(chunk)
        except OSError:
            pass
        close(client, server)

    def replies(self, server, client):
        passed = 0
        try:
            while chunk := server.recv(1 << 16):
                if chunk.startswith(b"HTTP/1.1"):
                    passed = 0
                kind = self.kind()
                if kind == "black hole":
                    continue
                if kind == "slow":
                    # In small pieces, as a slow network delivers.
                    for at in range(0, len(chunk), 8192):
                        piece = chunk[at : at + 8192]
                        time.sleep(len(piece) / self.fault[1])
                        client.sendall(piece)
                    passed += len(chunk)
                    continue
                if kind == "truncated" and passed + len(chunk) > self.fault[1]:
                    break
                if kind == "wrong bytes" and passed > 0:
                    middle = len(chunk) // 2
                    chunk = chunk[:middle] + bytes([chunk[middle] ^ 1]) + chunk[middle + 1 :]
                passed += len(chunk)
                client.sendall(chunk)
        except OSError:
            pass
        close(client, server)


def close(*ends):
    for end in ends:
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        end.close()
