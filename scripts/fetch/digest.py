# The SHA-256 of a file that may be too large for memory. Imported by the scripts here that fetch something and check it.
import hashlib


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
